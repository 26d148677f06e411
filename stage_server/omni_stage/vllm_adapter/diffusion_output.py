"""From a diffusion model's results to vLLM's model output: names, checks, and one wait for all copies of a step.

Private interface of vLLM 0.32: `AsyncModelRunnerOutput` (v1/outputs.py), on which an engine with asynchronous
scheduling waits while the next step runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_stage.errors import ModelExecutionError, OmniStageError
from omni_stage.vllm_adapter.capture import HostCopy
from omni_stage.vllm_adapter.packing import OUTPUT_NAME, encode_output, pack_error

DiffusionResult = torch.Tensor | list[torch.Tensor] | dict[str, torch.Tensor]
"""What a model makes of one request: one output; several, named output.0, output.1 ...; or named ones."""


def check_result(result: Any) -> DiffusionResult | OmniStageError:
    """The result, or the error that says that it is none."""
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
    """The tensors of a checked result by name."""
    if isinstance(result, torch.Tensor):
        return {OUTPUT_NAME: result}
    if isinstance(result, dict):
        return result
    return {f"{OUTPUT_NAME}.{index}": tensor for index, tensor in enumerate(result)}


class DiffusionStepOutput(AsyncModelRunnerOutput):
    """The outputs of one step on their way to the host."""

    def __init__(self, request_ids: list[str], outputs: Mapping[str, dict[str, HostCopy] | OmniStageError]) -> None:
        self._request_ids = request_ids
        self._outputs = outputs

    @classmethod
    def start(
        cls,
        request_ids: list[str],
        results: Mapping[str, DiffusionResult | OmniStageError],
        stream: torch.cuda.Stream | None,
    ) -> DiffusionStepOutput:
        """Start the copies of all results, beside whatever the device does next, and wait for none of them."""
        outputs: dict[str, dict[str, HostCopy] | OmniStageError] = {}
        for request_id, result in results.items():
            if isinstance(result, OmniStageError):
                outputs[request_id] = result
                continue
            outputs[request_id] = {
                # Cloned, as a model may return a buffer that it writes again in its next step; what the model put on
                # the host itself has no copy to wait for.
                name: HostCopy(
                    tensor.detach().clone(memory_format=torch.contiguous_format), stream if tensor.is_cuda else None
                )
                for name, tensor in name_tensors(result).items()
            }
        return cls(request_ids, outputs)

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the copies and give vLLM's output; None for a request without a result in this step."""
        return ModelRunnerOutput(
            req_ids=self._request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(self._request_ids)},
            pooler_output=[self._encode(request_id) for request_id in self._request_ids],
        )

    def _encode(self, request_id: str) -> torch.Tensor | None:
        output = self._outputs.get(request_id)
        if output is None:
            return None
        if isinstance(output, OmniStageError):
            return pack_error(type(output).__name__, str(output))
        try:
            return encode_output({name: copy.wait() for name, copy in output.items()}, OUTPUT_NAME)
        except OmniStageError as error:
            # A dtype that is not carried: the model's fault, and this request's alone.
            return pack_error(ModelExecutionError.__name__, str(error))
