"""What components that make audio give to vLLM. To its scheduler, a request has one token for each unit of work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omni_stage.models.component import EngineInput
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.wiring.names import DIFFUSION_SETTINGS


def vocoder_kwargs(
    path: Path, *, max_work: int, max_batch: int, step_work: int, cpu_step_work: int | None = None
) -> dict[str, Any]:
    """Returns the engine's arguments for a model in float32.

    max_work: maximum work of one request. max_batch: maximum number of requests in one step. step_work: maximum work in
    one step; a request with more gets a step of its own. cpu_step_work: the same on a CPU, if it differs.
    """
    settings = {"step_work": step_work}
    if cpu_step_work is not None:
        settings["cpu_step_work"] = cpu_step_work
    return {
        "model": str(path),
        "dtype": "float32",
        "skip_tokenizer_init": True,
        "runner": "pooling",
        "max_model_len": max_work,
        "max_num_batched_tokens": max_work,
        "max_num_seqs": max_batch,
        "enforce_eager": True,  # vLLM captures no graphs, because the models capture their own
        "additional_config": {DIFFUSION_SETTINGS: settings},
    }


def vocoder_input(work: int, values: Mapping[str, Any]) -> EngineInput:
    """Returns the engine's input with these values for the model."""
    return EngineInput(
        prompt={"prompt_token_ids": [0] * work},
        additional_information=AdditionalInformationPayload.from_mapping(values),
    )
