"""What the gateway knows about an entry stage while the stage's pods start and stop, and its connections to one."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import grpc
import pytest

from omni_gateway.entries.connections import FACTS_S, Entries
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import GatewayError, UnavailableError
from omni_proto.client import ClientTls
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc
from support.peers.certificates import Authority


class Entry(stage_service_pb2_grpc.StageServiceServicer):
    """An entry stage. A call fails with UNAVAILABLE if its number is in `away`, as if the stage had no pods."""

    def __init__(self) -> None:
        self.calls = 0
        self.away: set[int] = set()

    async def GetStage(
        self,
        request: stage_service_pb2.GetStageRequest,
        context: grpc.aio.ServicerContext[stage_service_pb2.GetStageRequest, stage_service_pb2.GetStageResponse],
    ) -> stage_service_pb2.GetStageResponse:
        self.calls += 1
        if self.calls in self.away:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "connections to all backends failing")
        return stage_service_pb2.GetStageResponse(stage=f"answer {self.calls}")


async def test_facts_are_requested_twice_and_stale_ones_serve_during_an_outage() -> None:
    """GetStage is retried once. While the stage cannot be reached, an answer older than FACTS_S stays in use."""
    entry, now = Entry(), [0.0]
    server = grpc.aio.server()
    stage_service_pb2_grpc.add_StageServiceServicer_to_server(entry, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    pipeline = ServedPipeline("omni", f"grpc://127.0.0.1:{port}")
    entries = Entries(lambda: now[0])
    try:
        entry.away = {1, 2, 3, 6, 7}
        with pytest.raises(GatewayError):
            await entries.facts(pipeline)
        assert (await entries.facts(pipeline)).stage == "answer 4", "a call that fails with UNAVAILABLE is retried once"
        assert (await entries.facts(pipeline)).stage == "answer 4"
        now[0] = FACTS_S + 1
        assert (await entries.facts(pipeline)).stage == "answer 5"
        now[0] = 2 * FACTS_S + 2
        assert (await entries.facts(pipeline)).stage == "answer 5", "the last answer stays in use"
        assert (await entries.facts(pipeline)).stage == "answer 8"
    finally:
        await entries.close()
        await server.stop(None)


async def test_an_invalid_renewed_file_keeps_the_old_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With damaged TLS files, requests use the older connection, and are refused with 503 only if there is none.

    Each damaged version of the files is logged once.
    """
    ca = tmp_path / "ca.crt"

    def renew(text: bytes, at: int) -> None:
        ca.write_bytes(text)
        os.utime(ca, (at, at))  # the file system's clock may be coarser than this test

    renew(b"damaged", 1)
    pipeline = ServedPipeline("omni", "grpcs://127.0.0.1:1", tls=ClientTls(ca=ca))
    entries = Entries()
    with caplog.at_level(logging.ERROR):
        with pytest.raises(UnavailableError):
            entries.generate(pipeline, text="hi")
        renew(Authority("good").certificate, 2)
        entries.generate(pipeline, text="hi")
        renew(b"damaged again", 3)
        for _ in range(3):
            entries.generate(pipeline, text="hi")
    await entries.close()
    assert [record.message for record in caplog.records] == ["the TLS files of an entry stage cannot be used"] * 2
    assert "tls.ca" in caplog.records[-1].reason  # type: ignore[attr-defined]
