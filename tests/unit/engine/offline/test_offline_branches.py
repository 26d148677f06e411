"""AsyncOmniLLM runs the branches of a pipeline concurrently. If one branch fails, the other is aborted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import torch

from omni_proto.pipeline import parse_pipeline
from omni_proto.stage_config import StageConfig
from omni_stage.engine.offline import stage_llm
from omni_stage.engine.offline.omni_llm import AsyncOmniLLM
from omni_stage.errors import ModelExecutionError
from omni_stage.models.component import FinishReason, StageRequest, StageStep
from support.processes.polling import PATIENCE_S
from support.stages.scripted_engine import ScriptedEngine
from support.stages.scripted_stages import EDGE_A, Script, ScriptedComponent, say_hello

PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: branches}
spec:
  model: {uri: "file:///nowhere"}
  stages:
  - {name: root, component: test/stage, outputs: [Text]}
  - {name: left, component: test/stage, inputs: [{from: root}], outputs: [Audio]}
  - {name: right, component: test/stage, inputs: [{from: root}], outputs: [Audio]}
"""


def build(
    monkeypatch: pytest.MonkeyPatch, left: Script, right: Script
) -> tuple[AsyncOmniLLM, dict[str, ScriptedEngine]]:
    """Returns a pipeline with scripted engines, and the engines by stage. Everything above the engines is real."""
    reader = ScriptedComponent(input_schema=EDGE_A)
    engines = {
        "root": ScriptedEngine(ScriptedComponent(output_schema=EDGE_A), say_hello),
        "left": ScriptedEngine(reader, left),
        "right": ScriptedEngine(replace(reader), right),
    }

    def build_engine(config: StageConfig, *, in_process: bool, alone: bool) -> ScriptedEngine:
        assert (in_process, alone) == (True, False)
        return engines[config.stage]

    monkeypatch.setattr(stage_llm, "build_stage_engine", build_engine)
    return AsyncOmniLLM(parse_pipeline(PIPELINE)), engines


async def test_branches_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each branch ends only after the other has begun. If they ran one after the other, neither would end."""
    begun = {"left": asyncio.Event(), "right": asyncio.Event()}

    def meet(own: str, other: str, sample: float) -> Script:
        async def script(request: StageRequest) -> AsyncIterator[StageStep]:
            begun[own].set()
            await begun[other].wait()
            yield StageStep(audio=torch.tensor([sample]), finish_reason=FinishReason.DIFFUSION_DONE)

        return script

    llm, _ = build(monkeypatch, meet("left", "right", 0.25), meet("right", "left", 0.5))
    async with asyncio.timeout(PATIENCE_S):
        result = await llm.generate("hello")
    assert list(result.stages) == ["root", "left", "right"]
    assert [float(result.stages[name].audio) for name in ("left", "right")] == [0.25, 0.5]  # type: ignore[arg-type]
    assert result.text == "Hello"


async def test_a_failing_branch_ends_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = asyncio.Event()

    async def wait(request: StageRequest) -> AsyncIterator[StageStep]:
        waits.set()
        await asyncio.Event().wait()
        yield StageStep()

    async def fail(request: StageRequest) -> AsyncIterator[StageStep]:
        await waits.wait()
        raise ModelExecutionError("broken")
        yield StageStep()

    llm, engines = build(monkeypatch, wait, fail)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(ModelExecutionError, match="broken") as caught:
            await llm.generate("hello")
    assert caught.value.__notes__ == ["in stage right"]
    assert engines["left"].aborted == [engines["left"].requests[0].request_id]
    assert engines["left"].unfinished_requests == engines["right"].unfinished_requests == 0
