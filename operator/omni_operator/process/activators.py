"""Keeps the addresses of the gateway's pods, to which callers of sleeping pipelines are led; see rollout/activation.py.

A DNS name, because looking one up needs no permission: its headless Service has the address of each ready pod.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from omni_operator.rollout.activation import Activator

CHECK_S: Final = 5.0
"""Pause between two look-ups, in seconds."""
MAX_ADDRESSES: Final = 100
"""Further addresses are left out: an EndpointSlice should not have more."""

_log = logging.getLogger(__name__)


class Activators:
    """The last answer to the look-ups of `run`."""

    def __init__(self, address: str | None, on_change: Callable[[], None]) -> None:
        """address: NAME:PORT; None: callers are led nowhere. on_change: called after the addresses have changed."""
        self._host, _, port = (address or "").rpartition(":")
        self._port = int(port or 0)
        self._on_change = on_change
        self.current = Activator()
        """Where callers are led."""

    async def run(self) -> None:
        """Look the name up again and again. Returns at once if there is none."""
        while self._host:
            await self.look_up()
            await asyncio.sleep(CHECK_S)

    async def look_up(self) -> None:
        """Look the name up once."""
        try:
            found = await asyncio.get_running_loop().getaddrinfo(self._host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            # Without a ready pod the name does not exist. After any other failure the last addresses stay.
            if not isinstance(error, socket.gaierror) or error.errno not in (socket.EAI_NONAME, socket.EAI_NODATA):
                return
            found = []
        addresses = tuple(sorted({str(one[4][0]) for one in found}))[:MAX_ADDRESSES]
        if addresses != self.current.addresses:
            _log.info("callers of sleeping pipelines are led to %s", ", ".join(addresses) or "nowhere")
            self.current = Activator(addresses, self._port)
            self._on_change()
