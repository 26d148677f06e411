"""Channels share no connection, whatever options the caller gives: sharing sometimes crashes gRPC core 1.85."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from omni_proto.client import AsyncOmniClient, OmniClient
from omni_proto.rpc.options import Options, channel_options, complete_options
from omni_proto.stage.v1 import stage_service_pb2_grpc
from omni_proto.stage.v1.stage_service_pb2 import GetStageRequest, GetStageResponse
from support.machine.tcp_proxy import TcpProxy

LOCAL_POOL = "grpc.use_local_subchannel_pool"


@pytest.mark.parametrize("options", [None, (), (("grpc.max_receive_message_length", 1),), ((LOCAL_POOL, 0),)])
def test_options_always_ask_for_connections_of_their_own(options: Options | None) -> None:
    complete = complete_options(options)
    assert [value for name, value in complete if name == LOCAL_POOL] == [1]
    assert {name for name, _ in options or ()} <= {name for name, _ in complete}


def test_without_options_a_channel_has_ours() -> None:
    assert complete_options(None) == channel_options()


class _Stage(stage_service_pb2_grpc.StageServiceServicer):
    async def GetStage(self, request: GetStageRequest, context: object) -> GetStageResponse:
        return GetStageResponse(stage="thinker")


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = grpc.aio.server()
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(_Stage(), server)
    bound = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield bound
    await server.stop(None)


async def test_clients_with_options_of_their_own_share_no_connection(port: int) -> None:
    def ask(target: str) -> None:
        with OmniClient(target, options=()) as first, OmniClient(target, options=()) as second:
            assert {first.get_stage().stage, second.get_stage().stage} == {"thinker"}

    with TcpProxy(f"127.0.0.1:{port}") as proxy:
        await asyncio.to_thread(ask, proxy.target)
        async with AsyncOmniClient(proxy.target, options=()) as one, AsyncOmniClient(proxy.target, options=()) as two:
            assert {(await one.get_stage()).stage, (await two.get_stage()).stage} == {"thinker"}
        assert proxy.connections == 4
