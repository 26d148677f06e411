"""Publishes what an autoregressive runner computes: rows of positions, and tensors that hooks make from sampled tokens.

The other half of the runner is runner.py. This half passes a step's results to the model's hooks, and starts copying
what the hooks return to the host.

Private interfaces of vLLM 0.32 used here (v1/worker/gpu_model_runner.py), and why:
- `GPUModelRunner._sample`: returns the sampled tokens on the device, before anything waits for them.
- `input_batch.generators`: the seeded generators of a step's requests, by their index.
- `execute_model_state`, `input_batch.req_ids`, `input_ids.gpu`, `discard_request_mask.np`, `requests`: what a step
  computed, for which requests, and which of them sample in this step. Public hooks for this do not exist.
- `_get_or_create_async_output_copy_stream`: the stream on which vLLM copies sampled tokens; rows use the same stream.

Puts captured rows into vLLM's model output, so that an autoregressive stage sends them with a step's tokens.

Private interface of vLLM 0.32: `AsyncModelRunnerOutput.get_output` (v1/outputs.py), the point where vLLM itself waits
for the copies of a step, after it has launched the next one. If the only worker runs in the engine's process, the
engine's thread calls it (`AsyncOutputFuture` in v1/executor/uniproc_executor.py). If workers have processes of their
own, each has a thread for it (`WorkerProc.async_output_busy_loop` in v1/executor/multiproc_executor.py). The stock
scheduler forwards `pooler_output` with sampled tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from vllm.distributed.parallel_state import get_tp_group
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_stage.errors import ModelExecutionError, OmniStageError
from omni_stage.vllm_adapter.ar.capture import (
    CaptureLedger,
    Delivery,
    FreshRows,
    HostCopy,
    HostSlice,
    compute_spans,
    merge_ranges,
    select_rows,
)
from omni_stage.vllm_adapter.hooks import Positions, SampledTokens, Stretch
from omni_stage.vllm_adapter.wiring.names import ROW_POSITIONS
from omni_stage.vllm_adapter.wiring.packing import ROWS_NAME, encode_output, pack_error
from omni_stage.vllm_adapter.worker import host_memory
from omni_stage.vllm_adapter.worker.config import OmniRunnerConfig

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
    from vllm.v1.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner as _Base
else:
    _Base = object
from collections.abc import Callable, Sequence
from typing import Self

from omni_stage.vllm_adapter.hooks import (
    ActsAfterSampling,
    FollowsRequests,
    HasPlaceholders,
    PublishesPositions,
)


@dataclass(frozen=True, slots=True)
class ModelHooks:
    """The hooks of one autoregressive model; see the protocols in hooks.py."""

    publish_positions: Callable[[Positions], Mapping[str, torch.Tensor]] | None = None
    select_positions: Callable[[Stretch], Sequence[tuple[int, int]]] | None = None
    follower: FollowsRequests | None = None
    after_sampling: Callable[[SampledTokens], Mapping[str, torch.Tensor]] | None = None
    placeholder_token_ids: tuple[int, ...] = ()

    @property
    def publishes(self) -> bool:
        """Whether the model itself chooses what it publishes for a position."""
        return self.publish_positions is not None

    @property
    def publishes_positions(self) -> bool:
        """Whether rows of positions are published. A model that only acts after sampling publishes none."""
        return self.publishes or self.after_sampling is None

    @classmethod
    def of(cls, model: Any) -> Self:
        """Returns the model's hooks."""
        publishes = isinstance(model, PublishesPositions)
        return cls(
            publish_positions=model.publish_positions if publishes else None,
            select_positions=getattr(model, "select_positions", None) if publishes else None,
            follower=model if isinstance(model, FollowsRequests) else None,
            after_sampling=model.after_sampling if isinstance(model, ActsAfterSampling) else None,
            placeholder_token_ids=tuple(model.placeholder_token_ids) if isinstance(model, HasPlaceholders) else (),
        )


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What the requests of one step send. Immutable, since the next step is planned before `attach`."""

    deliveries: dict[str, Delivery]
    extras: dict[str, dict[str, torch.Tensor]]
    """Tensors that are sent together with a request's rows."""
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


logger = logging.getLogger(__name__)


class PublishingMixin(_Base):
    """Adds the sending of rows to a class derived from vLLM's V1 runner."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device) -> None:
        """Build vLLM's runner, then ours. Raises ConfigurationError."""
        super().__init__(vllm_config, device)
        self._omni = OmniRunnerConfig.from_vllm_config(vllm_config)
        self._hooks = ModelHooks()
        """The model's hooks, once it is loaded."""
        self._ledger = CaptureLedger()
        self._failures: dict[str, OmniStageError] = {}
        """Requests whose payload or rows are wrong: each gets its error in place of its next output."""
        self._sampling: ExecuteModelState | None = None
        """The step that is being sampled."""
        self._sampled: dict[str, HostSlice] = {}

    @property
    def _reuses_rows(self) -> bool:
        """Whether the scheduler adds the rows of cached prefixes."""
        return bool(self._omni.rows_cache_bytes and self.cache_config.enable_prefix_caching)

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: GrammarOutput | None) -> Any:
        """Sample as vLLM does, and put rows and errors into `pooler_output`, which travels with the sampled tokens."""
        state = self.execute_model_state
        acts = self._hooks.after_sampling is not None
        if state is None or not (self._ledger or self._failures or acts):
            return self._sample_kept(grammar_output)
        # Captured before sampling, because the next step overwrites the buffers of hidden states and input ids.
        step = self._capture(state)
        self._sampling = state
        try:
            output = self._sample_kept(grammar_output)
        finally:
            self._sampling = None
        step = replace(step, sampled=self._sampled)
        self._sampled = {}
        if isinstance(output, AsyncModelRunnerOutput):
            return AsyncRowsOutput(output, step)
        if isinstance(output, ModelRunnerOutput):
            step.attach(output)
        return output

    def _sample(self, logits: torch.Tensor | None, spec_decode_metadata: Any) -> Any:
        output = super()._sample(logits, spec_decode_metadata)
        if self._sampling is not None and self._hooks.after_sampling is not None:
            self._sampled = self._act_after_sampling(output.sampled_token_ids, self._sampling.sample_hidden_states)
        return output

    def _act_after_sampling(self, token_ids: torch.Tensor, hidden_states: torch.Tensor) -> dict[str, HostSlice]:
        """Call the model's hook with the tokens [B] that this step keeps, and start copying the tensors it returns."""
        if self._hooks.after_sampling is None:
            return {}
        request_ids = self.input_batch.req_ids
        kept = [index for index, counts in enumerate(self._list_sampling()) if counts]
        if not kept:
            return {}
        tokens = token_ids[: len(request_ids), 0]
        if len(kept) < len(request_ids):
            chosen = host_memory.to_device(kept, self.device)
            tokens, hidden_states = tokens[chosen], hidden_states[chosen]
        names = [request_ids[index] for index in kept]
        made = self._hooks.after_sampling(SampledTokens(names, tokens, hidden_states[: len(kept)]))
        copies = self._start_copies(made, len(kept))
        return {name: HostSlice(copies, at, at + 1) for at, name in enumerate(names) if copies and name in self._ledger}

    def _list_sampling(self) -> list[bool]:
        """Returns for each request whether vLLM keeps its sampled token: not while the request's prefill continues."""
        return np.logical_not(self.discard_request_mask.np[: len(self.input_batch.req_ids)]).tolist()

    def _sample_kept(self, grammar_output: GrammarOutput | None) -> Any:
        """Sample as vLLM does, without drawing from the seeded generators of requests whose prefill continues.

        vLLM draws for them too and then rewinds their generators. Generators on a CPU cannot be rewound: a seeded
        request whose prefill takes several steps would end the engine.
        """
        generators = self.input_batch.generators
        hidden = {
            index: generators.pop(index)
            for index in np.nonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])[0].tolist()
            if index in generators
        }
        try:
            return super().sample_tokens(grammar_output)
        finally:
            generators.update(hidden)

    def _capture(self, state: ExecuteModelState) -> StepOutput:
        """Start this step's copy and decide, from data on the host, which requests send what."""
        scheduler_output = state.scheduler_output
        request_ids = self.input_batch.req_ids
        spans = compute_spans(request_ids, scheduler_output.num_scheduled_tokens, start_positions(scheduler_output))
        # A model that publishes no rows of positions may reuse some that this worker never computed.
        fresh, gaps = self._ledger.plan(spans) if self._hooks.publishes_positions else ([], {})
        for request_id, error in gaps.items():
            self._fail(request_id, error)
        sampling = [
            request_id for request_id, samples in zip(request_ids, self._list_sampling(), strict=True) if samples
        ]
        fresh = self._select(fresh)
        copies = self._start_copies(*self._gather(state.hidden_states, fresh)) if fresh else {}
        deliveries = self._ledger.settle(fresh, copies, sampling)
        extras = {request_id: self._extras_of(request_id, delivery) for request_id, delivery in deliveries.items()}
        failures = {
            request_id: self._failures.pop(request_id) for request_id in sampling if request_id in self._failures
        }
        return StepOutput(deliveries, extras, failures)

    def _select(self, fresh: list[FreshRows]) -> list[FreshRows]:
        """Returns the rows that the model publishes."""
        select = self._hooks.select_positions
        if select is None:
            return fresh
        return select_rows(fresh, lambda rows: select(self._stretch_of(rows)))

    def _stretch_of(self, rows: FreshRows) -> Stretch:
        request = self.requests[rows.request_id]
        # A video and its audio share one range.
        media = {
            (feature.mm_position.offset, feature.mm_position.offset + feature.mm_position.length)
            for feature in request.mm_features
        }
        return Stretch(rows.position, rows.end - rows.begin, request.num_prompt_tokens, sorted(media))

    def _gather(self, hidden_states: torch.Tensor, fresh: list[FreshRows]) -> tuple[Mapping[str, torch.Tensor], int]:
        """Returns the tensors [n, ...] to publish for the n fresh rows, on the device and in their order, and n."""
        ranges = merge_ranges((rows.begin, rows.end) for rows in fresh)

        def take(values: torch.Tensor) -> torch.Tensor:
            return torch.cat([values[begin:end] for begin, end in ranges])

        hidden = take(hidden_states)
        if self._hooks.publish_positions is None:
            return {ROWS_NAME: hidden}, hidden.shape[0]
        positions = Positions(take(self.input_ids.gpu), hidden, take)
        return self._hooks.publish_positions(positions), hidden.shape[0]

    def _start_copies(self, tensors: Mapping[str, torch.Tensor], rows: int) -> dict[str, HostCopy]:
        """Start copying a hook's tensors to the host. Raises ModelExecutionError on a wrong shape."""
        for name, tensor in tensors.items():
            if tensor.shape[:1] != (rows,):
                raise ModelExecutionError(f"the model gave {name} of shape {list(tensor.shape)} for {rows} rows")
        if not get_tp_group().is_first_rank:
            # Only the first rank's output is read; the others ran the hook because an embedding may be sharded.
            return {}
        return {name: HostCopy(tensor, self._copy_stream()) for name, tensor in tensors.items()}

    def _copy_stream(self) -> torch.cuda.Stream | None:
        return self._get_or_create_async_output_copy_stream() if host_memory.copies_overlap(self.device) else None

    def _extras_of(self, request_id: str, delivery: Delivery) -> dict[str, torch.Tensor]:
        extras = self._mrope_of(request_id) if delivery.first else {}
        if self._reuses_rows and self._hooks.select_positions is not None:
            extras[ROW_POSITIONS] = delivery.positions()
        return extras

    def _mrope_of(self, request_id: str) -> dict[str, torch.Tensor]:
        """Returns the prompt's M-RoPE positions [P, 3] and delta [1], both int64, if they are to be sent."""
        if not self._omni.capture_mrope:
            return {}
        request = self.requests[request_id]
        if request.mrope_positions is None or request.mrope_position_delta is None:
            return {}
        positions = request.mrope_positions[:, : request.num_prompt_tokens].t().to(torch.int64).contiguous()
        return {"mrope_positions": positions, "mrope_delta": torch.tensor([request.mrope_position_delta])}

    def _fail(self, request_id: str, error: OmniStageError) -> None:
        logger.error("request %s cannot be run: %s", request_id, error)
        self._ledger.close(request_id)
        self._failures[request_id] = error


def start_positions(scheduler_output: SchedulerOutput) -> dict[str, int]:
    """Returns the first position that a step computes, per scheduled request."""
    starts = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
    cached = scheduler_output.scheduled_cached_reqs
    starts.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return starts
