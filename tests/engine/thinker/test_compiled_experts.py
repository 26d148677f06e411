"""The start-up comparison of compiled and eager code accepts that rounding changes which experts a token gets.

It runs on Qwen3-Omni's talker with many experts, compiled as in test_compiled_models.py. As on a GPU, the experts run
in vLLM's custom operator, which is opaque to the compiler. On a CPU vLLM would call the Python function directly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

from omni_stage.models.qwen3_omni.tiny import write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape
from omni_stage.vllm_adapter.ar.warm_steps import run_steps
from support.engines.omni_stages import OmniStages, run_omni_stages

pytestmark = pytest.mark.engine

MANY_EXPERTS = TinyShape(talker_layers=2, talker_experts=128)
ROUNDING = 4e-3
"""Relative error added to the input rows: as large as a rounding to bfloat16."""


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def select_forward(runner: MoERunner) -> Any:
        operators = torch.ops.vllm
        return operators.moe_forward if runner._shared_experts is None else operators.moe_forward_shared

    monkeypatch.setenv("VLLM_CPU_CI_ENV", "1")
    monkeypatch.setattr(MoERunner, "_select_forward", select_forward)


@pytest.fixture
def rounded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A list with one value that a test may change: the relative error added to the inputs of the compiled run."""
    from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin

    size = [0.0]
    generator = torch.Generator().manual_seed(0)
    forward = OmniARRunnerMixin._model_forward

    def off(runner: Any, *args: Any, **kwargs: Any) -> Any:
        if not runner._as_written and size[0]:
            # The runner refills the buffer in every step.
            rows = runner._input_rows.buffer
            rows.mul_(1 + size[0] * torch.randn(rows.shape, generator=generator).to(rows.dtype))
        return forward(runner, *args, **kwargs)

    monkeypatch.setattr(OmniARRunnerMixin, "_model_forward", off)
    return size


def core_of(stages: OmniStages) -> Any:
    return stages.engines["talker"]._core  # type: ignore[attr-defined]


def runner_of(stages: OmniStages) -> Any:
    return core_of(stages).llm.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


async def test_rounding_that_changes_experts_is_no_difference(
    tmp_path: Path, rounded: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path, shape=MANY_EXPERTS)
    async with run_omni_stages(checkpoint, "talker", family="qwen3_omni", enforce_eager=False) as stages:
        assert not stages.engines["talker"].compiled_check_failed
        runner, check = runner_of(stages), core_of(stages).compare_with_eager
        assert runner.expert_choices is not None
        assert await check() == ""
        rounded[0] = ROUNDING
        assert await check() == ""
        with monkeypatch.context() as patch:
            patch.setattr(runner, "expert_choices", None)
            assert "hidden states differ" in await check(), "otherwise no token got other experts"
        # A real error is still found.
        rounded[0] = 0.1
        assert await check() != ""
        rounded[0] = 0.0
        recorded = runner.expert_choices.recorded

        def another(tokens: int) -> Any:
            choice = recorded(tokens)
            return choice and [(ids + 1) % MANY_EXPERTS.talker_experts for ids in choice]

        with monkeypatch.context() as patch:
            patch.setattr(runner.expert_choices, "recorded", another)
            assert await check() != ""
        model = runner.get_model()
        graphed, choices = model._graphed, runner.expert_choices
        choices.forget()
        await core_of(stages).serve_eager()
        run_steps(runner, [1, 17])
        assert model._graphed is graphed, "the predictor's own graphs are compared when they are captured"
        assert choices.recorded(1) is None, "nothing records experts any more"
