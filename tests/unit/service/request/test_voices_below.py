"""GetStage of a stage that does not know the voices of the stages below it: it asks them."""

from __future__ import annotations

from typing import Any

from omni_proto.stage.v1 import stage_service_pb2 as pb
from support.processes.polling import PATIENCE_S


async def ask_voices(stage: Any, timeout_s: float = PATIENCE_S) -> list[str]:
    answer = await stage.stub.GetStage(pb.GetStageRequest(), timeout=timeout_s)
    return list(answer.voices)


async def test_every_stage_above_the_voice_names_its_voices(kit: Any) -> None:
    first, middle, last = await kit.chain()
    for stage in (first, middle, last):
        assert await ask_voices(stage) == ["Chelsie", "Ethan"]
    await last.server.close()
    assert await ask_voices(first) == ["Chelsie", "Ethan"], "an answer is kept"


async def test_a_voice_that_cannot_be_reached_leaves_the_answer_without_voices(kit: Any) -> None:
    first, middle, last = await kit.chain()
    await last.server.close()
    assert await ask_voices(middle) == []
    assert await ask_voices(first) == []


async def test_a_stage_is_not_asked_for_voices_that_it_cannot_have(kit: Any) -> None:
    stage = await kit.serve(downstream=[kit.edge("below", "127.0.0.1:1", ["below"]).model_copy(update={"outputs": []})])
    assert await ask_voices(stage) == []
