"""The two shells of a pool, blocking and asyncio: they resolve the stage's name again and again, watch the connections
to its pods, and lend a channel to one call.

A channel is READY while its pod is connected and its health service says SERVING: channel_options asks for health
checks. So a pod that drains leaves the choice when it says so, before its address disappears.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import grpc.aio

from omni_proto.rpc.balance.addresses import REFRESH_S, Resolve, resolver_of
from omni_proto.rpc.balance.choice import Affinity
from omni_proto.rpc.balance.pool import StageChannels
from omni_proto.rpc.channels import Loan, open_aio_channel, open_channel, pod_options
from omni_proto.rpc.options import Options


def open_pool(
    target: str, credentials: grpc.ChannelCredentials | None, options: Options | None
) -> StageChannels[grpc.Channel]:
    """Returns a pool of blocking channels. Its channels open with the first call."""

    def open_one(pod: str | None) -> grpc.Channel:
        used = options if pod is None else pod_options(target, options)
        return open_channel(pod or target, credentials=credentials, options=used)

    return StageChannels(open_one, ThreadShell(), resolver_of(target))


def open_aio_pool(
    target: str, credentials: grpc.ChannelCredentials | None, options: Options | None
) -> StageChannels[grpc.aio.Channel]:
    """Returns a pool of asyncio channels. Its channels open with the first call."""

    def open_one(pod: str | None) -> grpc.aio.Channel:
        used = options if pod is None else pod_options(target, options)
        return open_aio_channel(pod or target, credentials=credentials, options=used)

    return StageChannels(open_one, AioShell(), resolver_of(target))


@contextmanager
def borrow(
    pool: StageChannels[grpc.Channel], affinity: Affinity | None = None, avoid: Collection[str] = ()
) -> Iterator[Loan[grpc.Channel]]:
    """Lends a blocking channel to one call. Afterwards closes it if it was replaced and no other call uses it."""
    loan = pool.take(affinity, avoid)
    try:
        yield loan
    finally:
        if (unused := pool.give_back(loan)) is not None:
            unused.close()


@asynccontextmanager
async def borrow_aio(
    pool: StageChannels[grpc.aio.Channel], affinity: Affinity | None = None, avoid: Collection[str] = ()
) -> AsyncIterator[Loan[grpc.aio.Channel]]:
    """Lends an asyncio channel to one call. Afterwards closes it if it was replaced and no other call uses it."""
    loan = pool.take(affinity, avoid)
    try:
        yield loan
    finally:
        if (unused := pool.give_back(loan)) is not None:
            await unused.close()


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
