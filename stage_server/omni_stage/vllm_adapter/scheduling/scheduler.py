"""OmniScheduler: vLLM's scheduler, which calls five hooks around each step.

- Payloads (payloads.py): new requests that carry a payload get it decoded.
- PlaybackOrder (playback_order.py), where a component says how fast its tokens are played: the request whose audio runs
  out first goes first, and a prompt waits if it would delay the first audio of earlier requests too long.
- LastPlaces (last_places.py): a client with many requests leaves places for others.
- MediaTurns (media_turns.py): media are encoded in turns with the tokens of other requests.
- CachedPrefixes (cached_prefixes.py), in a stage whose rows another stage reads and that caches prefixes.
- InputHashes (input_hashes.py), in a stage whose prompts are input rows and that caches prefixes.
- EarlyEnds (below): requests that cannot continue end with the cause for their clients. Among them are those whose form
  of structured output costs too much CPU time in the steps (structured.py).

Private interfaces of vLLM 0.32, which has no public scheduler interface:
- `v1.core.sched.scheduler.Scheduler` and `async_scheduler.AsyncScheduler`: `schedule`, `add_request`,
  `update_from_output`, `finish_requests`, `_free_request`, `_update_request_as_session`, `get_grammar_bitmask`,
  `structured_output_manager`, and `_try_schedule_encoder_inputs`, which takes and returns vLLM's encoder budget. Also
  `v1.engine.EngineCoreOutput(s)` and `v1.request.Request`.
- `Request.arrival_time` orders `PriorityRequestQueue`, picks the request to preempt, and is used for nothing else. It
  may not change while the request is in that queue. `Scheduler.running` is a list; a step reads it in list order.
- `Scheduler.max_num_active_reqs`: how many requests may run.
- `Scheduler.make_stats` counts requests that wait for their next part (`num_waiting_for_streaming_input`) as deferred.
- A step calls `Scheduler._handle_blocked_waiting_request` at most once for each waiting request, in queue order, before
  anything is allocated. A request for which it returns False keeps its place.
- `EngineCore.log_error_detail` calls `vllm.logging_utils.dump_input`, whose logger writes the step that failed: see
  `_disable_dump`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.config import VllmConfig
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from omni_stage.payloads.additional_information import OMNI_LATE_KEY
from omni_stage.vllm_adapter.scheduling.cached_prefixes import CachedPrefixes
from omni_stage.vllm_adapter.scheduling.input_hashes import InputHashes
from omni_stage.vllm_adapter.scheduling.last_places import LastPlaces
from omni_stage.vllm_adapter.scheduling.media_turns import MediaShare, MediaStep, MediaTurns
from omni_stage.vllm_adapter.scheduling.payloads import Payloads
from omni_stage.vllm_adapter.scheduling.playback import Pace
from omni_stage.vllm_adapter.scheduling.playback_order import PlaybackOrder
from omni_stage.vllm_adapter.structured import MeteredManager, grammar_of
from omni_stage.vllm_adapter.wiring.names import FORM_COST
from omni_stage.vllm_adapter.worker.config import OmniRunnerConfig

_MAXIMUM_STEPS: Final = 8
"""Upper bound of the number of steps in flight. With asynchronous scheduling, vLLM has 2."""


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step whose outputs have not arrived yet."""

    output: SchedulerOutput
    scheduled: float
    media: MediaStep | None


class EarlyEnds:
    """The requests that end at the next `update_from_output`, with the stop reasons for their clients."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._ended: list[tuple[Request, str]] = []

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._reasons

    def add(self, request_id: str, reason: str) -> None:
        """End a request. A request keeps its first reason."""
        self._reasons.setdefault(request_id, reason)

    def before_update(self, finish: Callable[[Iterable[str], RequestStatus], list[Request]]) -> None:
        """End the requests before vLLM reads the step's outputs, so that it drops what was computed for them."""
        reasons, self._reasons = self._reasons, {}
        finished = finish(reasons, RequestStatus.FINISHED_ABORTED) if reasons else []
        self._ended = [(request, reasons[request.request_id]) for request in finished]

    def after_update(self, outputs: dict[int, EngineCoreOutputs]) -> None:
        """Add the last output of each request that ended."""
        for request, reason in self._ended:
            client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            client.outputs.append(_build_last_output(request, reason))
        self._ended = []


class OmniSchedulerMixin:
    """What we add to any of vLLM's schedulers. Use OmniScheduler or OmniAsyncScheduler."""

    vllm_config: VllmConfig
    requests: dict[str, Request]
    running: list[Request]
    waiting: RequestQueue
    num_waiting_for_streaming_input: int
    max_num_active_reqs: int
    max_num_encoder_input_tokens: int
    encoder_cache_manager: EncoderCacheManager
    structured_output_manager: StructuredOutputManager
    kv_cache_config: KVCacheConfig
    kv_cache_manager: KVCacheManager
    block_size: int
    hash_block_size: int
    clock: Callable[[], float] = staticmethod(time.monotonic)  # seconds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take vLLM's arguments. Raises ConfigurationError if additional_config holds wrong settings."""
        super().__init__(*args, **kwargs)
        _disable_dump()
        MeteredManager.adopt(self.structured_output_manager)
        config = self.vllm_config.additional_config
        pace = Pace.from_additional_config(config)
        self._payloads = Payloads(config)
        self._playback = None if pace is None else PlaybackOrder(pace)
        self._last_places = LastPlaces(self.max_num_active_reqs)
        self._media = MediaTurns(MediaShare.from_additional_config(config))
        self._early_ends = EarlyEnds()
        runner, cache = OmniRunnerConfig.from_vllm_config(self.vllm_config), self.vllm_config.cache_config
        self._prefixes = self._make_prefixes(runner.rows_cache_bytes) if cache.enable_prefix_caching else None
        hashes_inputs = cache.enable_prefix_caching and runner.hash_inputs
        self._inputs = InputHashes(self.hash_block_size, cache.prefix_caching_hash_algo) if hashes_inputs else None
        self._steps: deque[_Step] = deque(maxlen=_MAXIMUM_STEPS)

    def add_request(self, request: Request) -> None:
        """Queue a request, or the next part of one, as vLLM does."""
        late_s = _late_s(request)
        request.arrival_time += late_s
        if request.request_id not in self.requests:
            self._last_places.add(request.request_id, late_s, self.clock())
            if self._inputs is not None:
                self._inputs.adopt(request)
        if self._playback is not None:
            self._playback.add(request, self.clock() + late_s)
        super().add_request(request)  # type: ignore[misc]

    def reject(self, request_id: str, stop_reason: str) -> None:
        """End a request at the next `update_from_output`; its client gets finish reason abort and this stop reason.

        A request keeps the first reason. Unknown and finished ids are ignored.
        """
        if request_id in self.requests:
            self._early_ends.add(request_id, stop_reason)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule one step as vLLM does; new requests with a payload come out as OmniNewRequestData."""
        began = self.clock()
        if self._playback is not None:
            self._playback.before_schedule(self.running, self.waiting, began)
        # This is 0 if the model takes no media.
        media = self._media if self.max_num_encoder_input_tokens else None
        held = [] if media is None else media.before_schedule(self.requests, self.waiting)
        try:
            output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            if held:
                self.waiting.prepend_requests(reversed(held))
        encodes = bool(output.scheduled_encoder_inputs)
        media_step = None if media is None else media.after_schedule(began, encodes=encodes)
        self._steps.append(_Step(output, self.clock(), media_step))
        if self._prefixes is not None:
            self._prefixes.after_schedule(output, self.requests)
        for request_id, reason in self._payloads.after_schedule(output.scheduled_new_reqs).items():
            self.reject(request_id, reason)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """End the requests that were rejected, then process the outputs of a step as vLLM does."""
        self._end_step(scheduler_output)
        self._early_ends.before_update(self.finish_requests)  # type: ignore[attr-defined]
        if self._prefixes is not None:
            self._prefixes.before_update(scheduler_output, model_runner_output, self.requests)
        outputs: dict[int, EngineCoreOutputs]
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        self._early_ends.after_update(outputs)
        return outputs

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        """Returns the tokens that structured output allows in a step, and ends requests whose form costs too much."""
        output: GrammarOutput | None = super().get_grammar_bitmask(scheduler_output)  # type: ignore[misc]
        for name in output.structured_output_request_ids if output is not None else ():
            grammar = grammar_of(self.requests[name])
            if grammar is not None and grammar.given_up:
                self.reject(name, f"{FORM_COST}: {grammar.describe()}")
        return output

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """Returns vLLM's statistics, without counting requests that wait for rows of the upstream stage.

        This stage cannot serve such requests sooner, so they must not count as waiting here.
        """
        stats: SchedulerStats | None = super().make_stats(*args, **kwargs)  # type: ignore[misc]
        if stats is not None:
            stats.num_skipped_waiting_reqs -= self.num_waiting_for_streaming_input
        return stats

    def _end_step(self, output: SchedulerOutput) -> None:
        now = self.clock()
        step = next((step for step in self._steps if step.output is output), None)
        if step is None:
            return
        self._steps.remove(step)
        if self._playback is not None:
            self._playback.after_step(output.total_num_scheduled_tokens, step.scheduled, now)
        if step.media is not None:
            self._media.after_step(step.media, now)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Returns whether a waiting request may join this step. If it may not, it keeps its place in the queue."""
        if not super()._handle_blocked_waiting_request(request):  # type: ignore[misc]
            return False
        running = len(self.running) + self.num_waiting_for_streaming_input
        if not self._last_places.admits(request.request_id, running, self.clock()):
            return False
        return self._playback is None or self._playback.admits(request, self.running)

    def _try_schedule_encoder_inputs(
        self, request: Request, computed: int, new: int, budget: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Plan a request's media as vLLM does, within what the step may still encode."""
        capped = self._media.budget(request, computed, budget, self.encoder_cache_manager)
        plan = super()._try_schedule_encoder_inputs  # type: ignore[misc]
        inputs, new, left, *rest = plan(request, computed, new, capped, *args, **kwargs)
        self._media.spend(capped - left)
        return inputs, new, budget - (capped - left), *rest

    def _update_request_as_session(self, session: Request, update: Any) -> None:
        """Take the next part of a request whose input comes in parts, and keep the request's arrival time.

        vLLM sets it to the part's arrival time. But a request that waits for its next part is in the heap of a priority
        queue, ordered by priority and arrival time. The change would break that order.
        """
        arrival_time = session.arrival_time
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        session.arrival_time = arrival_time

    def _make_prefixes(self, capacity: int) -> CachedPrefixes | None:
        if not capacity:
            return None
        # Rows are kept by the hashes of blocks of one size. Layers of several kinds may have other blocks each.
        groups = self.kv_cache_config.kv_cache_groups
        is_uniform = len(groups) == 1 and self.hash_block_size == self.block_size == groups[0].kv_cache_spec.block_size
        return CachedPrefixes(capacity if is_uniform else 0, self.kv_cache_config.num_blocks, self.block_size)

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """Returns the cached blocks that a request may reuse: only those whose rows are there too, if it wants rows."""
        blocks, tokens, *rest = super()._get_local_prefix_cache_hit(request)  # type: ignore[misc]
        if self._prefixes is not None and tokens:
            limit = self._prefixes.limit(request, tokens)
            if limit < tokens:
                blocks, tokens = self.kv_cache_manager.truncate_computed_blocks(blocks, limit), limit
        return blocks, tokens, *rest

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        if self._prefixes is not None:
            self._prefixes.preempted(request)
        super()._preempt_request(request, *args, **kwargs)  # type: ignore[misc]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        """Drop cached prefixes as vLLM does, and their rows."""
        if self._prefixes is not None:
            self._prefixes.cache.clear()
        return bool(super().reset_prefix_cache(*args, **kwargs))  # type: ignore[misc]

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if self._prefixes is not None:
            self._prefixes.ended(request)
        if self._playback is not None:
            self._playback.remove(request.request_id)
        self._last_places.remove(request.request_id)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]


class OmniScheduler(OmniSchedulerMixin, Scheduler):
    """vLLM's Scheduler with payloads."""


class OmniAsyncScheduler(OmniSchedulerMixin, AsyncScheduler):
    """vLLM's AsyncScheduler with payloads, for engines with async_scheduling (the default on GPUs)."""


def _disable_dump() -> None:
    """Stop vLLM from logging the step that failed. The exception and its traceback are still logged.

    For tensors vLLM writes only the shapes, but sampling parameters and media appear in full: stop strings, grammars,
    pixels, and the bytes of our payloads. vLLM has no setting to disable this.
    """
    logging.getLogger("vllm.logging_utils.dump_input").setLevel(logging.CRITICAL)


def _build_last_output(request: Request, stop_reason: str) -> EngineCoreOutput:
    return EngineCoreOutput(
        request_id=request.request_id,
        new_token_ids=[],
        # The output processor requires a tensor in a pooling request's last output.
        pooling_output=torch.empty(0) if request.pooling_params is not None else None,
        finish_reason=request.get_finished_reason(),
        stop_reason=stop_reason,
        events=request.take_events(),
        trace_headers=request.trace_headers,
    )


def _late_s(request: Request) -> float:
    """Returns the seconds by which a request stands later in the queue than its arrival."""
    extra = getattr(request.sampling_params, "extra_args", None)
    late = extra.get(OMNI_LATE_KEY, 0.0) if isinstance(extra, dict) else 0.0
    return float(late) if isinstance(late, int | float) and math.isfinite(late) else 0.0
