"""Computes an engine's budgets from the stage's limits and engineArgs, as fields of vllm_config.additional_config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omni_proto.stage_config import EngineArgs

CPU_STEP_WORK = "cpu_step_work"
"""Key in a component's diffusion settings: the value of `step_work`, the maximum work in flight, on a CPU. A CPU runs a
batch no faster than the same requests one by one, and a request that arrives while a batch runs gets its first audio
only after the whole batch."""
PAYLOAD_SHARE = 2
"""A payload may be up to this many times as large as the stage's byte budget, because a component may widen 16-bit rows
to 32 bits."""


def payload_limits(byte_budget: int) -> dict[str, int]:
    """Returns the fields of PayloadLimits: no payload is larger than PAYLOAD_SHARE times the stage's byte budget."""
    return {"max_tensor_bytes": PAYLOAD_SHARE * byte_budget, "max_payload_bytes": PAYLOAD_SHARE * byte_budget}


def diffusion_settings(
    component: Mapping[str, Any],
    user: EngineArgs,
    *,
    max_num_seqs: int | None,
    queue_timeout_s: float | None,
    byte_budget: int | None,
    on_cpu: bool,
) -> dict[str, Any]:
    """Returns the fields of DiffusionSettings.

    The stage's batch size, work per step, CUDA graphs, queue timeout and byte budget override the component's settings.
    """
    component = dict(component)
    cpu_step_work = component.pop(CPU_STEP_WORK, None)
    if on_cpu and cpu_step_work is not None:
        component["step_work"] = cpu_step_work
    said: dict[str, Any] = {
        "queue_timeout_s": queue_timeout_s,
        "max_batch": max_num_seqs,
        "step_work": user.max_num_batched_tokens,
        "embedding_budget_bytes": byte_budget,
        "cuda_graphs": False if user.enforce_eager else None,
    }
    return component | {name: value for name, value in said.items() if value is not None}
