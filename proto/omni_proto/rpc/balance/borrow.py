"""Lends a channel of a pool to one call, and opens pools: blocking and asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager

import grpc
import grpc.aio

from omni_proto.rpc.balance.addresses import resolver_of
from omni_proto.rpc.balance.choice import Affinity
from omni_proto.rpc.balance.pool import StageChannels
from omni_proto.rpc.balance.watch import AioShell, ThreadShell
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
