"""Turns a diffusion model's results into vLLM's model output: names and checks them, and copies them to the host.

The copies end before the step does, because a diffusion stage has no asynchronous scheduling. With it, vLLM 0.32 keeps
two steps in flight and launches the second before it reads the results of the first
(`EngineCore.step_with_batch_queue`). Each result would wait until a whole further generation is launched, only to hide
a copy of a few hundred kilobytes.

Private interface of vLLM 0.32: `ModelRunnerOutput` (v1/outputs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.v1.outputs import ModelRunnerOutput

from omni_stage.errors import ModelExecutionError, OmniStageError
from omni_stage.vllm_adapter.wiring.packing import OUTPUT_NAME, encode_output, pack_error

DiffusionResult = torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]
"""A model's result for one request: one tensor; a list of tensors, named output.0, output.1 ...; or a dict of them."""


def check_result(result: Any) -> DiffusionResult | OmniStageError:
    """Returns the result, or an error if it is not a valid result."""
    if isinstance(result, torch.Tensor):
        return result
    if isinstance(result, dict) and result and all(isinstance(name, str) and name for name in result):
        tensors: Sequence[Any] = list(result.values())
    elif isinstance(result, list) and result:
        tensors = result
    else:
        tensors = [None]
    if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
        return result
    return ModelExecutionError(
        f"the model's result is a {type(result).__name__}; it must be a tensor, or a list or dict of tensors"
    )


def name_tensors(result: DiffusionResult) -> dict[str, torch.Tensor]:
    """Returns the tensors of a checked result by name."""
    if isinstance(result, torch.Tensor):
        return {OUTPUT_NAME: result}
    if isinstance(result, dict):
        return result
    return {f"{OUTPUT_NAME}.{index}": tensor for index, tensor in enumerate(result)}


def build_output(request_ids: list[str], results: Mapping[str, DiffusionResult | OmniStageError]) -> ModelRunnerOutput:
    """Returns vLLM's output of a step, on the host, with None for a request without a result. Waits for the device."""
    return ModelRunnerOutput(
        req_ids=request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
        pooler_output=[_encode(results.get(request_id)) for request_id in request_ids],
    )


def _encode(result: DiffusionResult | OmniStageError | None) -> torch.Tensor | None:
    if result is None:
        return None
    if isinstance(result, OmniStageError):
        return pack_error(type(result).__name__, str(result))
    # A tensor that is on the host already is cloned too: it may be a buffer that the model's next step overwrites.
    tensors = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in name_tensors(result).items()
    }
    broken = [name for name, tensor in tensors.items() if not _is_finite(tensor)]
    if broken:
        error = ModelExecutionError(f"the model gave values that are not finite ({', '.join(broken)})")
        return pack_error(type(error).__name__, str(error))
    try:
        return encode_output(tensors, OUTPUT_NAME)
    except OmniStageError as error:
        # Packing refused the tensors, for example their dtype. That is the model's fault; only this request fails.
        return pack_error(ModelExecutionError.__name__, str(error))


def _is_finite(tensor: torch.Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())
