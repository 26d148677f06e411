"""What the gateway knows about an entry stage while the stage's pods start and stop."""

from __future__ import annotations

import grpc
import pytest

from omni_gateway.entries import FACTS_S, Entries
from omni_gateway.errors import GatewayError
from omni_gateway.pipelines import ServedPipeline
from omni_proto.stage.v1 import stage_service_pb2, stage_service_pb2_grpc


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


async def test_facts_are_asked_for_twice_and_old_ones_serve_while_nobody_answers() -> None:
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
