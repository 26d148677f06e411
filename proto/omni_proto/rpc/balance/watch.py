"""The two shells of a pool: they resolve the stage's name again and again, and watch the connections to its pods.

A channel is READY while its pod is connected and its health service says SERVING: channel_options asks for health
checks. So a pod that drains leaves the choice when it says so, before its address disappears.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import Callable, Collection
from typing import Any

import grpc
import grpc.aio

from omni_proto.rpc.balance.addresses import REFRESH_S, Resolve
from omni_proto.rpc.balance.pool import StageChannels

_log = logging.getLogger(__name__)


class AioShell:
    """Runs in the event loop of the pool's calls."""

    def __init__(self, raw: Callable[[Any], grpc.aio.Channel] = lambda channel: channel) -> None:
        """raw: returns the gRPC channel of a pool's channel."""
        self._raw = raw
        self._refreshing: asyncio.Task[None] | None = None
        self._watching: dict[str, asyncio.Task[None]] = {}

    def wake(self, pool: StageChannels[Any]) -> None:
        """See Shell."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh(pool))

    def watch(self, pool: StageChannels[Any], address: str, channel: Any) -> None:
        """See Shell."""
        task = asyncio.get_running_loop().create_task(self._watch(pool, address, self._raw(channel)))
        self._watching[address] = task

    def forget(self, address: str) -> None:
        """See Shell."""
        if (task := self._watching.pop(address, None)) is not None:
            task.cancel()

    def stop(self) -> None:
        """See Shell."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        for address in list(self._watching):
            self.forget(address)

    async def _refresh(self, pool: StageChannels[Any]) -> None:
        resolve = pool.resolve
        while resolve is not None and pool.is_in_use:
            addresses = await asyncio.get_running_loop().run_in_executor(None, _resolve, resolve)
            for unused in pool.update(addresses) if addresses is not None else ():
                await self._raw(unused).close()
            await asyncio.sleep(REFRESH_S)

    @staticmethod
    async def _watch(pool: StageChannels[Any], address: str, channel: grpc.aio.Channel) -> None:
        while True:
            state = channel.get_state(try_to_connect=True)
            pool.set_connected(address, state is grpc.ChannelConnectivity.READY)
            await channel.wait_for_state_change(state)


class ThreadShell:
    """Runs in a thread of its own, which does not keep its pool alive. gRPC adds one for each pod that it watches."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self, pool: StageChannels[grpc.Channel]) -> None:
        """See Shell."""
        if self._thread is not None and self._thread.is_alive():
            return
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                arguments = (weakref.ref(pool), self._stopped)
                self._thread = threading.Thread(target=_refresh, args=arguments, name="stage-pods", daemon=True)
                self._thread.start()

    def watch(self, pool: StageChannels[grpc.Channel], address: str, channel: grpc.Channel) -> None:
        """See Shell."""
        reference = weakref.ref(pool)

        def note(state: grpc.ChannelConnectivity) -> None:
            owner = reference()
            if owner is not None:
                owner.set_connected(address, state is grpc.ChannelConnectivity.READY)

        channel.subscribe(note, try_to_connect=True)

    def forget(self, address: str) -> None:
        """See Shell. Closing the channel ends its watch."""

    def stop(self) -> None:
        """See Shell."""
        self._stopped.set()


def _refresh(reference: weakref.ref[StageChannels[grpc.Channel]], stopped: threading.Event) -> None:
    while not stopped.is_set():
        pool = reference()
        if pool is None or pool.resolve is None or not pool.is_in_use:
            return
        addresses = _resolve(pool.resolve)
        for unused in pool.update(addresses) if addresses is not None else ():
            unused.close()
        del pool
        stopped.wait(REFRESH_S)


def _resolve(resolve: Resolve) -> Collection[str] | None:
    """Returns the pods' addresses; None if they cannot be found now, so that the known ones are kept."""
    began = time.monotonic()
    try:
        return resolve()
    except (OSError, UnicodeError) as error:  # UnicodeError: a part of the name is empty or too long
        _log.debug("a stage's name was not resolved", extra={"reason": str(error), "seconds": time.monotonic() - began})
        return None
