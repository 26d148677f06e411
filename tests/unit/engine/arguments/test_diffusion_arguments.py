"""OmniEngineArgs of diffusion stages: pooling, queue limits, and the limits of a step."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.pipeline.components import EngineKind
from omni_proto.stage_config import EngineArgs, Timeouts
from support.stages.described_engines import build


def test_a_diffusion_stage_pools_and_limits_its_queue() -> None:
    described = {"kind": EngineKind.DIFFUSION, "queue_timeout_s": 30.0}
    additional = {"additional_config": {"omni_diffusion": {"max_batch": 2}}}
    args = build(kwargs=additional, **described)
    assert args.vllm_kwargs(worker_cls="w", scheduler_cls="s")["runner"] == "pooling"
    assert args.additional_config == {"omni_diffusion": {"max_batch": 2, "queue_timeout_s": 30.0}}
    user = build(timeouts=Timeouts(queue=5.0), kwargs=additional, **described)
    assert user.additional_config["omni_diffusion"]["queue_timeout_s"] == 5.0


DIFFUSION_KWARGS = {
    "max_model_len": 16384,
    "max_num_batched_tokens": 16384,
    "max_num_seqs": 32,
    "enforce_eager": True,
    "additional_config": {"omni_diffusion": {"step_work": 4096}},
}


@pytest.mark.parametrize(
    ("user", "settings", "batched_tokens"),
    [
        pytest.param(None, {"step_work": 4096, "max_batch": 32}, 16384, id="the component's"),
        pytest.param(
            EngineArgs(max_num_seqs=4, max_num_batched_tokens=1000),
            {"step_work": 1000, "max_batch": 4},
            16384,
            id="smaller steps, though vLLM must let the longest request through",
        ),
        pytest.param(
            EngineArgs(max_num_batched_tokens=50_000), {"step_work": 50_000, "max_batch": 32}, 50_000, id="larger steps"
        ),
        pytest.param(
            EngineArgs(enforce_eager=True),
            {"step_work": 4096, "max_batch": 32, "cuda_graphs": False},
            16384,
            id="no graphs of the model's own",
        ),
        pytest.param(
            EngineArgs(enforce_eager=False), {"step_work": 4096, "max_batch": 32}, 16384, id="graphs, as by default"
        ),
    ],
)
def test_a_diffusion_stages_steps_are_bounded(
    user: EngineArgs | None, settings: dict[str, Any], batched_tokens: int
) -> None:
    args = build(user, kind=EngineKind.DIFFUSION, kwargs=DIFFUSION_KWARGS)
    assert args.additional_config["omni_diffusion"] == settings
    assert args.max_num_batched_tokens == batched_tokens
    assert args.enforce_eager, "vLLM has nothing to compile or capture here"


@pytest.mark.parametrize(
    ("user", "on_cpu", "step_work"),
    [
        (None, True, 72),
        (None, False, 4096),
        (EngineArgs(max_num_batched_tokens=1000), True, 1000),
        (EngineArgs(max_num_batched_tokens=1000), False, 1000),
    ],
)
def test_a_component_may_have_smaller_steps_for_a_cpu(user: EngineArgs | None, on_cpu: bool, step_work: int) -> None:
    kwargs = {**DIFFUSION_KWARGS, "additional_config": {"omni_diffusion": {"step_work": 4096, "cpu_step_work": 72}}}
    args = build(user, on_cpu=on_cpu, kind=EngineKind.DIFFUSION, kwargs=kwargs)
    assert args.additional_config["omni_diffusion"] == {"step_work": step_work, "max_batch": 32}
