"""Which channel a call uses, and when a replaced channel is closed."""

from __future__ import annotations

import asyncio
import itertools
from concurrent import futures

import grpc
import pytest

from omni_cli.local.ports import pick_ports
from omni_proto.client import AsyncOmniClient, OmniClient, OmniRequestError
from omni_proto.rpc.channels import ChannelPool, Loan
from omni_proto.stage.v1 import stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GetStageRequest, GetStageResponse


def numbered(renew_after_s: float = 0.0) -> ChannelPool[int]:
    numbers = itertools.count(1)
    return ChannelPool(lambda: next(numbers), renew_after_s=renew_after_s)


def give_back(pool: ChannelPool[int], loan: Loan[int], *, unreached: bool) -> int | None:
    loan.unreached = unreached
    return pool.give_back(loan)


def test_calls_share_a_channel_that_reaches_the_pipeline() -> None:
    pool = numbered()
    first, second = pool.take(), pool.take()
    assert (first.channel, second.channel) == (1, 1)
    assert give_back(pool, first, unreached=False) is None
    assert give_back(pool, second, unreached=False) is None
    assert pool.take().channel == 1


def test_a_lost_channel_is_left_and_closed_once_its_calls_have_ended() -> None:
    """A channel that could not reach its stage is replaced, and closed after its last call."""
    pool = numbered()
    long, failing, also_failing = pool.take(), pool.take(), pool.take()
    assert give_back(pool, failing, unreached=True) is None
    assert pool.take().channel == 2
    assert give_back(pool, also_failing, unreached=True) is None, "already replaced; the new channel is kept"
    assert pool.take().channel == 2
    assert give_back(pool, long, unreached=False) == 1
    assert pool.close() == [2]


def test_a_young_channel_is_kept_and_closing_takes_all() -> None:
    """A channel younger than renew_after_s is not replaced. close() returns all channels."""
    pool = numbered(renew_after_s=60)
    assert give_back(pool, pool.take(), unreached=True) is None
    assert pool.take().channel == 1
    old = numbered()
    running, failing = old.take(), old.take()
    give_back(old, failing, unreached=True)
    assert old.close() == [1, 2]
    assert give_back(old, running, unreached=False) is None, "its channel is closed already"


def test_the_first_call_opens_the_channel() -> None:
    """A channel of grpc.aio belongs to the event loop that runs when it is opened."""
    pool: ChannelPool[int] = ChannelPool(lambda: pytest.fail("opened without a call"))
    assert pool.close() == []


class _Stage(stage_service_pb2_grpc.StageServiceServicer):
    def GetStage(self, request: GetStageRequest, context: object) -> GetStageResponse:
        return GetStageResponse(stage="thinker")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list with one item for each channel that clients open from now on.

    A channel that cannot reach the pipeline is replaced immediately, not only after RENEW_AFTER_S.
    """
    made: list[int] = []
    create = ChannelPool._new

    def count(pool: ChannelPool[object]) -> object:
        made.append(1)
        pool._renew_after_s = 0.0
        return create(pool)

    monkeypatch.setattr(ChannelPool, "_new", count)
    return made


async def test_both_clients_find_a_pipeline_that_came_back(opened: list[int]) -> None:
    target = f"127.0.0.1:{pick_ports(1)[0]}"
    blocking = OmniClient(target)
    async with AsyncOmniClient(target) as client:
        for call in (client.get_stage, lambda: asyncio.to_thread(blocking.get_stage)):
            with pytest.raises(OmniRequestError) as caught:
                await call()
            assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert len(opened) == 4, "each client has replaced its first channel"
        server = grpc.server(futures.ThreadPoolExecutor(2))
        stage_service_pb2_grpc.add_StageServiceServicer_to_server(_Stage(), server)
        assert server.add_insecure_port(target)
        server.start()
        assert (await client.get_stage()).stage == "thinker"
        assert (await asyncio.to_thread(blocking.get_stage)).stage == "thinker"
        assert len(opened) == 4
        server.stop(None)
    await asyncio.to_thread(blocking.close)
