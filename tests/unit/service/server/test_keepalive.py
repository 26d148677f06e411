"""With the product's options, keepalive pings do not look like a flood: a silent call lasts at least ten minutes.

A server that counts too many pings closes the connection with GOAWAY (ENHANCE_YOUR_CALM, "too_many_pings"), which also
ends its calls. A raw HTTP/2 peer tests that the stage server does so, because gRPC's own clients cannot flood a server.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest

from omni_proto.rpc.options import channel_options
from omni_proto.stage.v1 import stage_service_pb2_grpc
from support.machine.raw_http2 import RawConnection
from support.stages import scripted_stages as lab

SILENCE_S = 600.0


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_keepalive_pings_of_ten_silent_minutes_end_no_call(kit: Any) -> None:
    """A call without messages still runs after ten minutes of keepalive pings."""
    stage = await kit.serve(lab.wait_forever, timeouts={"request": 800})
    began = time.monotonic()
    async with grpc.aio.insecure_channel(stage.target, options=channel_options()) as channel:
        call = stage_service_pb2_grpc.StageServiceStub(channel).Generate(iter([lab.start(), lab.END]), timeout=700)
        try:
            async with asyncio.timeout(SILENCE_S):
                answer = await lab.collect(call)
        except TimeoutError:
            return
    pytest.fail(f"ended after {time.monotonic() - began:.0f} s: {answer.code.name} {answer.message}")


async def test_a_flood_of_pings_ends_its_own_connection(kit: Any) -> None:
    stage = await kit.serve()

    def flood() -> bool:
        with RawConnection(stage.server.ports.grpc) as peer:
            for _ in range(10):
                peer.ping()
            peer.read(lambda: peer.going_away)
            # A server that closes with unread pings sends a TCP reset, which may overtake its GOAWAY.
            return peer.going_away or not peer.alive

    assert await asyncio.to_thread(flood)
    assert (await lab.ask(stage)).text == "Hello"
