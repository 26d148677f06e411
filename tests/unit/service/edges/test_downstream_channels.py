"""Channels to a stage whose DNS name disappears and returns, and to a server that drains.

The tests use real gRPC and a name server of their own.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from omni_proto.rpc.options import server_options
from omni_proto.stage.v1 import events_pb2, stage_service_pb2 as pb, stage_service_pb2_grpc
from omni_stage.service.edges.channels import DownstreamChannels, OpenCall
from support.machine.tcp_proxy import TcpProxy
from support.peers.certificates import Authority, Pair
from support.processes.polling import PATIENCE_S

A, NO_ERROR, NAME_ERROR = 1, 0x8180, 0x8183


class NameServer(asyncio.DatagramProtocol):
    """Resolves every name to 127.0.0.1 while `known` is true. Otherwise no name exists."""

    known = False
    queries = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: tuple[str, int]) -> None:
        end = data.index(0, 12) + 5
        (kind,) = struct.unpack(">H", data[end - 4 : end - 2])
        self.queries += kind == A
        found = self.known and kind == A
        head = data[:2] + struct.pack(">HHHHH", NO_ERROR if self.known else NAME_ERROR, 1, found, 0, 0)
        answer = struct.pack(">HHHIH", 0xC00C, A, 1, 1, 4) + socket.inet_aton("127.0.0.1") if found else b""
        self.transport.sendto(head + data[12:end] + answer, address)  # type: ignore[attr-defined]


class Stage(stage_service_pb2_grpc.StageServiceServicer):
    """Accepts each call and ends it once `may_end` is set."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def Generate(self, requests: object, context: object) -> AsyncIterator[pb.GenerateResponse]:
        yield pb.GenerateResponse(accepted=events_pb2.Accepted())
        await self.may_end.wait()


@asynccontextmanager
async def name_server() -> AsyncIterator[tuple[NameServer, int]]:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(NameServer, local_addr=("127.0.0.1", 0))
    yield protocol, transport.get_extra_info("sockname")[1]
    transport.close()


@asynccontextmanager
async def serving(pair: Pair | None = None) -> AsyncIterator[tuple[Stage, grpc.aio.Server, int]]:
    stage, server = Stage(), grpc.aio.server(options=server_options())
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(stage, server)
    if pair is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(pair.key, pair.certificate)]))
    await server.start()
    yield stage, server, port
    await server.stop(None)


def call(channels: DownstreamChannels) -> OpenCall:
    return channels.generate("talker", timeout=PATIENCE_S, metadata=())


async def first_message(opened: OpenCall) -> str:
    message = await anext(aiter(opened.call))
    return str(message.WhichOneof("message"))


async def call_unreachable(channels: DownstreamChannels) -> grpc.StatusCode:
    """Makes a call that must fail before any message arrives. Returns its status code."""
    opened = call(channels)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first_message(opened)
    opened.note_failed(caught.value, accepted=False)
    opened.end()
    return caught.value.code()


async def test_a_name_that_is_back_is_found_by_the_next_call() -> None:
    async with name_server() as (names, dns_port), serving() as (_, _, port):
        target = f"dns://127.0.0.1:{dns_port}/talker.test.:{port}"
        channels = DownstreamChannels({"talker": target}, renew_after_s=0.0)
        for _ in range(6):
            assert await call_unreachable(channels) is grpc.StatusCode.UNAVAILABLE
        assert names.queries >= 6, "gRPC's own resolver would have asked once or twice"
        names.known = True
        assert await first_message(call(channels)) == "accepted"
        await channels.close()


async def test_calls_on_a_channel_that_is_replaced_continue() -> None:
    async with serving() as (stage, server, port):
        channels = DownstreamChannels({"talker": f"127.0.0.1:{port}"}, renew_after_s=0.0)
        running = call(channels)
        assert await first_message(running) == "accepted"
        drained = asyncio.create_task(server.stop(PATIENCE_S))
        for _ in range(3):
            # A call that meets the server's shutdown may end with CANCELLED. explain_failure treats both codes alike,
            # as a lost stage.
            code = await call_unreachable(channels)
            assert code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        stage.may_end.set()
        assert await running.call.code() is grpc.StatusCode.OK
        running.end()
        await drained
        await channels.close()


async def test_a_young_channel_is_kept() -> None:
    async with name_server() as (names, dns_port):
        channels = DownstreamChannels({"talker": f"dns://127.0.0.1:{dns_port}/talker.test.:1"}, renew_after_s=3600)
        for _ in range(6):
            assert await call_unreachable(channels) is grpc.StatusCode.UNAVAILABLE
        assert names.queries < 6
        await channels.close()


async def test_channels_share_no_connection() -> None:
    """gRPC core 1.85 sometimes crashes when several channels watch the health of a shared connection."""
    async with serving() as (stage, _, port):
        stage.may_end.set()
        with TcpProxy(f"127.0.0.1:{port}") as proxy:
            both = [DownstreamChannels({"talker": proxy.target}) for _ in range(2)]
            for channels in both:
                opened = call(channels)
                assert await first_message(opened) == "accepted"
                assert await opened.call.code() is grpc.StatusCode.OK
            assert proxy.connections == len(both)
            for channels in both:
                await channels.close()


async def test_each_stage_is_called_with_its_own_credentials() -> None:
    authority = Authority("ours")
    async with serving(authority.issue()) as (_, _, secure), serving() as (_, _, plain):
        channels = DownstreamChannels(
            {"talker": f"localhost:{secure}", "decoder": f"127.0.0.1:{plain}"},
            credentials={"talker": grpc.ssl_channel_credentials(authority.certificate)},
        )
        for stage in ("talker", "decoder"):
            opened = channels.generate(stage, timeout=PATIENCE_S, metadata=())
            assert await first_message(opened) == "accepted"
            opened.end()
        await channels.close()
