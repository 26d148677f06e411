"""Reads the metrics of stages' pods over HTTP, as Prometheus does: bounded in time, size and number."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections.abc import Mapping
from typing import Final

import aiohttp

from omni_operator.scaling.readings import Reading, parse_reading
from omni_proto.pod_contract import METRICS_PORT

TIMEOUT_S: Final = 4.0
MAX_PAGE_BYTES: Final = 4 << 20
"""Largest page of metrics. vLLM's have some 100 KiB."""
CONCURRENT: Final = 16
"""Pods that are read at the same time."""

_log = logging.getLogger(__name__)


class Scraper:
    """Reads pods on the running event loop. `close` it."""

    def __init__(self, port: int = METRICS_PORT) -> None:
        self._port = port
        self._slots = asyncio.Semaphore(CONCURRENT)
        # No proxy, no cookies, one connection per request: the stage server closes each.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        )

    async def read(self, addresses: Mapping[str, str]) -> dict[str, Reading]:
        """Returns the readings of pods, by the keys of their IP addresses. A pod that does not answer is absent."""
        found = await asyncio.gather(*(self._read(address) for address in addresses.values()))
        return {key: one for key, one in zip(addresses, found, strict=True) if one is not None}

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()

    async def _read(self, address: str) -> Reading | None:
        try:
            host = ipaddress.ip_address(address)
        except ValueError:
            return None
        url = f"http://{f'[{host}]' if host.version == 6 else host}:{self._port}/metrics"
        try:
            async with self._slots, self._session.get(url, allow_redirects=False) as response:
                page = bytearray()
                async for part in response.content.iter_chunked(1 << 16):
                    page += part
                    if len(page) > MAX_PAGE_BYTES:
                        return None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _log.debug("no metrics of %s: %s", url, error or "too slow")
            return None
        return parse_reading(bytes(page), time.monotonic()) if response.status == 200 else None
