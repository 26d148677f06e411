"""How many rows a component may publish for one request: what is announced, reserved and enforced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from omni_proto.stage_config import EdgeMode, SamplingDefaults
from omni_stage.models.component import EdgeInput, EdgeStream, FinishReason, StageRequest, StageStep
from omni_stage.service.request.planning.plan import bound_rows
from support.stages import scripted_stages as lab

PROMPT, NEW = 3, 16


@dataclass
class WritesText(lab.ScriptedComponent):
    """Publishes up to ten rows for each new token, and none for the prompt."""

    def max_rows(self, input_rows: int, max_tokens: int) -> int:
        return 10 * max_tokens


@pytest.mark.parametrize(
    ("component", "max_tokens", "rows"),
    [
        pytest.param(lab.ScriptedComponent(), NEW, PROMPT + NEW, id="one row a position"),
        pytest.param(lab.ScriptedComponent(), None, 100, id="no bound of the tokens but the engine's"),
        pytest.param(lab.ScriptedComponent(rows_per_position=5), NEW, 5 * (PROMPT + NEW), id="five rows a position"),
        pytest.param(lab.ScriptedComponent(rows_per_position=5), 1000, 500, id="five rows, the engine's bound"),
        pytest.param(WritesText(), NEW, 10 * NEW, id="the component's own bound"),
        pytest.param(WritesText(rows_per_position=5), None, 1000, id="the own bound takes precedence"),
    ],
)
def test_bounds(component: Any, max_tokens: int | None, rows: int) -> None:
    assert bound_rows(component, PROMPT, max_tokens, max_model_len=100) == rows


async def publish(kit: Any, mode: EdgeMode, published: int, component: Any) -> tuple[Any, list[int], Any]:
    """Runs a request whose first stage publishes so many rows. Returns the answer, the rows read, and the stage."""
    read: list[int] = []

    async def write(_: StageRequest) -> AsyncIterator[StageStep]:
        for row in range(published):
            tensors = {"codes": torch.tensor([row])}
            yield StageStep(token_ids=[row], prompt_token_ids=None if row else [1] * PROMPT, tensors=tensors)
        yield StageStep(finish_reason=FinishReason.STOP)

    async def speak(request: StageRequest) -> AsyncIterator[StageStep]:
        ended = isinstance(request.source, EdgeInput)
        if isinstance(request.source, EdgeInput):
            read.extend(request.source.tensors["codes"].tolist())
        while not ended:
            assert isinstance(request.source, EdgeStream)
            rows = await request.source.read()
            read.extend(rows.tensors["codes"].tolist() if "codes" in rows.tensors else [])
            ended = rows.ended
        yield StageStep(audio=torch.zeros(10), finish_reason=FinishReason.STOP)

    voice = await kit.serve(
        speak,
        stage="voice",
        outputs=["Audio"],
        input={"source": "writer", "mode": mode.value},
        component=lab.ScriptedComponent(input_schema=lab.EDGE_B),
    )
    edge = kit.edge("voice", voice.target, ["voice"]).model_copy(update={"mode": mode})
    writer = await kit.serve(write, stage="writer", downstream=[edge], component=component)
    return await lab.ask(writer), read, voice


@pytest.mark.parametrize("mode", list(EdgeMode))
async def test_several_rows_for_each_token_reach_the_next_stage(kit: Any, mode: EdgeMode) -> None:
    component = lab.ScriptedComponent(output_schema=lab.EDGE_B, rows_per_position=8)
    answer, read, _ = await publish(kit, mode, 8 * (PROMPT + NEW), component)
    assert answer.code.name == "OK", answer.message
    assert read == list(range(8 * (PROMPT + NEW)))


@pytest.mark.parametrize("mode", list(EdgeMode))
async def test_more_rows_than_announced_are_the_publishers_fault(kit: Any, mode: EdgeMode) -> None:
    """The stage that publishes fails, and not the user's request or the stage that reads."""
    component = WritesText(output_schema=lab.EDGE_B, default_sampling=SamplingDefaults(max_tokens=2))
    answer, _, _ = await publish(kit, mode, 21, component)
    assert answer.code.name == "INTERNAL"
    assert answer.info.metadata["stage"] == "writer"
    assert "published 21 rows of tensor 'codes' for a request, at most 20 were announced" in answer.message


async def test_rows_are_reserved_as_announced(kit: Any) -> None:
    component = lab.ScriptedComponent(output_schema=lab.EDGE_B, rows_per_position=10_000)
    seen: list[StageRequest] = []

    async def write(request: StageRequest) -> AsyncIterator[StageStep]:
        seen.append(request)
        yield StageStep(finish_reason=FinishReason.STOP)

    edge = kit.edge("voice", "127.0.0.1:1", ["voice"])
    writer = await kit.serve(
        write, stage="writer", downstream=[edge], component=component, limits={"maxInflightBytes": 1 << 20}
    )
    answer = await lab.ask(writer)
    assert answer.code.name == "RESOURCE_EXHAUSTED", answer.message
    assert not seen
