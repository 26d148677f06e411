"""Puts captured rows into vLLM's model output, so that an autoregressive stage sends them with a step's tokens.

Private interface of vLLM 0.32: `AsyncModelRunnerOutput.get_output` (v1/outputs.py), the point where vLLM itself waits
for the copies of a step, after it has launched the next one. If the only worker runs in the engine's process, the
engine's thread calls it (`AsyncOutputFuture` in v1/executor/uniproc_executor.py). If workers have processes of their
own, each has a thread for it (`WorkerProc.async_output_busy_loop` in v1/executor/multiproc_executor.py). The stock
scheduler forwards `pooler_output` with sampled tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_stage.errors import OmniStageError
from omni_stage.vllm_adapter.ar.capture import Delivery, HostSlice
from omni_stage.vllm_adapter.wiring.packing import ROWS_NAME, encode_output, pack_error


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the requests of one step send. Immutable, since the next step is planned before `attach`."""

    deliveries: dict[str, Delivery]
    extras: dict[str, dict[str, torch.Tensor]]
    """Tensors that are sent together with a request's first rows."""
    failures: dict[str, OmniStageError]
    """Requests that send an error in place of rows."""
    sampled: Mapping[str, HostSlice] = field(default_factory=dict)
    """The tensors that the model computed from a request's sampled token."""

    def attach(self, output: ModelRunnerOutput) -> ModelRunnerOutput:
        """Wait for the rows and put them into `output.pooler_output`; returns `output`."""
        if self.deliveries or self.failures or self.sampled:
            output.pooler_output = [self._encode(request_id) for request_id in output.req_ids]
        return output

    def _encode(self, request_id: str) -> torch.Tensor | None:
        failure = self.failures.get(request_id)
        if failure is not None:
            return pack_error(type(failure).__name__, str(failure))
        delivery, sampled = self.deliveries.get(request_id), self.sampled.get(request_id)
        tensors = {} if delivery is None else {**delivery.tensors(), **self.extras.get(request_id, {})}
        if sampled is not None:
            # Copied: a view would keep the whole step's copy alive.
            tensors |= {name: rows.clone() for name, rows in sampled.wait().items()}
        return encode_output(tensors, ROWS_NAME) if tensors else None


class AsyncRowsOutput(AsyncModelRunnerOutput):
    """vLLM's asynchronous output, to which the rows are added once tokens and rows have arrived."""

    def __init__(self, inner: AsyncModelRunnerOutput, step: StepOutput) -> None:
        self._inner = inner
        self._step = step

    def get_output(self) -> ModelRunnerOutput:
        """Wait until the step's tokens and rows are on the host. Returns vLLM's output with both."""
        return self._step.attach(self._inner.get_output())
