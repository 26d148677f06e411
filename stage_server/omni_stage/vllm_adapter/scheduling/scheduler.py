"""OmniScheduler: vLLM's scheduler, with payloads for the worker and an end for requests that cannot continue.

- Payloads: `schedule` runs vLLM's own method, and then adds the decoded payload to new requests that carry one.
- Order: where a component says how fast its tokens are played (pace.py), requests of equal priority are ordered by when
  their audio will run out. If a step cannot hold all requests, the one whose audio runs out first goes first. If the KV
  cache is full, the request with the most audio ahead is preempted. A new request waits if reading its prompt now
  would delay the first audio of earlier requests by more time than it saves the waiting requests (groups.py).
- Media are encoded in turns with the tokens of other requests (media_turns.py). While media must wait, requests that
  still have media to encode are taken out of vLLM's queue for the step, because vLLM would not look past a request
  that cannot start.
- Structured output: a request whose form costs too much CPU time in the steps ends (structured/manager.py).
- Early ends: `update_from_output` first ends rejected requests, with the cause for their clients, and then runs vLLM's
  own method.

A request whose payload cannot be read stays in the step that scheduled it, and ends after that step. Taking it out of
the step would be wrong: by then vLLM has entered its KV blocks into the prefix cache and its images into the encoder
cache, and other requests would hit entries that were never computed.

Private interfaces of vLLM 0.32, which has no public scheduler interface:
- `v1.core.sched.scheduler.Scheduler` and `async_scheduler.AsyncScheduler`: `schedule`, `add_request`,
  `update_from_output`, `finish_requests`, `_free_request`, `_update_request_as_session`, `get_grammar_bitmask`,
  `structured_output_manager`, and `_try_schedule_encoder_inputs`, which takes and returns vLLM's encoder budget. Also
  `v1.engine.EngineCoreOutput(s)` and `v1.request.Request`.
- `Request.arrival_time` orders `PriorityRequestQueue`, picks the request to preempt, and is used for nothing else. It
  may not change while the request is in that queue. `Scheduler.running` is a list; a step reads it in list order.
- `Scheduler.make_stats` counts requests that wait for their next part (`num_waiting_for_streaming_input`) as deferred.
- A step calls `Scheduler._handle_blocked_waiting_request` at most once for each waiting request, in queue order, before
  anything is allocated. A request for which it returns False keeps its place.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from omni_stage.errors import OmniStageError
from omni_stage.vllm_adapter.scheduling.error_dump import disable_dump
from omni_stage.vllm_adapter.scheduling.groups import Group, StepCost
from omni_stage.vllm_adapter.scheduling.media_turns import MediaStep, MediaTurns, cap_budget
from omni_stage.vllm_adapter.scheduling.pace import Listener, Pace
from omni_stage.vllm_adapter.scheduling.scheduler_output import (
    OmniNewRequestData,
    decode_payload,
    find_raw_payload,
    read_limits,
)
from omni_stage.vllm_adapter.structured.manager import MeteredManager, grammar_of
from omni_stage.vllm_adapter.wiring.names import FORM_COST, INVALID_PAYLOAD

_ACTIVE = (RequestStatus.RUNNING, RequestStatus.WAITING, RequestStatus.PREEMPTED)
"""Statuses of requests that wait for tokens. A session that waits for its next part has another status."""
logger = logging.getLogger(__name__)

_MOST_STEPS = 8
"""Upper bound of the number of steps in flight. With asynchronous scheduling, vLLM has 2."""


class OmniSchedulerMixin:
    """What we add to any of vLLM's schedulers. Use OmniScheduler or OmniAsyncScheduler."""

    requests: dict[str, Request]
    running: list[Request]
    waiting: RequestQueue
    num_waiting_for_streaming_input: int
    max_num_encoder_input_tokens: int
    encoder_cache_manager: EncoderCacheManager
    structured_output_manager: StructuredOutputManager
    clock: Callable[[], float] = staticmethod(time.monotonic)  # seconds

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take vLLM's arguments. Raises ConfigurationError if additional_config holds wrong settings."""
        super().__init__(*args, **kwargs)
        disable_dump()
        MeteredManager.adopt(self.structured_output_manager)
        # The front end checked every value before it admitted the request: here a checksum is enough.
        self._payload_limits = read_limits(self.vllm_config.additional_config).already_checked()  # type: ignore[attr-defined]
        self._rejected: dict[str, str] = {}
        self._pace = Pace.from_additional_config(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        self._listeners: dict[str, Listener] = {}
        self._turns = MediaTurns.from_additional_config(self.vllm_config.additional_config)  # type: ignore[attr-defined]
        self._steps: dict[int, MediaStep] = {}
        """Steps without outputs yet, by the identity of vLLM's SchedulerOutput."""
        self._media_room: int | None = None
        """Embeddings that the step being planned may still encode."""
        self._cost = StepCost()
        self._group: Group | None = None
        self._begun: deque[tuple[SchedulerOutput, float]] = deque(maxlen=_MOST_STEPS)
        """Steps that were scheduled, and when."""
        self._last_end = -math.inf

    def add_request(self, request: Request) -> None:
        """Queue a request, or the next part of one, as vLLM does."""
        if self._pace is not None and request.request_id not in self._listeners:
            listener = self._listeners[request.request_id] = Listener.at(self.clock(), request.num_tokens)
            request.arrival_time = listener.due
        super().add_request(request)  # type: ignore[misc]

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule one step as vLLM does; new requests with a payload come out as OmniNewRequestData."""
        if self._pace is not None:
            self._order_running(self._pace)
            self._group = self._find_group(self._pace)
        output = self._schedule_in_turns(*args, **kwargs)
        if self._pace is not None:
            self._begun.append((output, self.clock()))
        self._enrich(output.scheduled_new_reqs)
        return output

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """End the requests that were rejected, then process the outputs of a step as vLLM does."""
        step = self._steps.pop(id(scheduler_output), None)
        if step is not None:
            self._turns.end(step, self.clock())
        if self._pace is not None:
            self._note_step(scheduler_output)
        rejected, self._rejected = self._rejected, {}
        # End them first, so that vLLM drops what the step computed for them.
        finished: list[Request] = []
        if rejected:
            finished = self.finish_requests(rejected, RequestStatus.FINISHED_ABORTED)  # type: ignore[attr-defined]
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        for request in finished:
            client = outputs.setdefault(request.client_index, EngineCoreOutputs())
            client.outputs.append(_build_last_output(request, rejected[request.request_id]))
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

    def _schedule_in_turns(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if not self.max_num_encoder_input_tokens:
            # The model takes no media.
            return super().schedule(*args, **kwargs)  # type: ignore[misc]
        began = self.clock()
        media = {name for name, request in self.requests.items() if _awaits_media(request)}
        others = any(name not in media and request.status in _ACTIVE for name, request in self.requests.items())
        self._media_room = self._turns.room(others=others)
        held = [request for request in self.waiting if request.request_id in media] if self._media_room == 0 else []
        if held:
            self.waiting.remove_requests(held)
        try:
            output: SchedulerOutput = super().schedule(*args, **kwargs)  # type: ignore[misc]
        finally:
            self.waiting.prepend_requests(reversed(held))
        encodes = bool(output.scheduled_encoder_inputs)
        self._steps[id(output)] = self._turns.begin(began, encodes=encodes, others=others)
        return output

    def _try_schedule_encoder_inputs(
        self, request: Request, computed: int, new: int, budget: int, *args: Any, **kwargs: Any
    ) -> Any:
        """Plan a request's media as vLLM does, within what the step may still encode."""
        plan = super()._try_schedule_encoder_inputs  # type: ignore[misc]
        if self._media_room is None:
            return plan(request, computed, new, budget, *args, **kwargs)
        capped = cap_budget(self._media_room, self._next_embeds(request, computed), budget)
        inputs, new, left, *rest = plan(request, computed, new, capped, *args, **kwargs)
        self._media_room = max(0, self._media_room - (capped - left))
        return inputs, new, budget - (capped - left), *rest

    def _next_embeds(self, request: Request, computed: int) -> int:
        """Returns the number of embeddings of the request's next medium that is not encoded."""
        for index, feature in enumerate(request.mm_features):
            if feature.mm_position.offset + feature.mm_position.length <= computed:
                continue
            if self.encoder_cache_manager.get_cached_num_encoder_embeds(request, index) is None:
                return int(request.get_num_encoder_embeds(index))
        return 0

    def _update_request_as_session(self, session: Request, update: Any) -> None:
        """Take the next part of a request whose input comes in parts, and keep the request's arrival time.

        vLLM sets it to the part's arrival time. But a request that waits for its next part is in the heap of a priority
        queue, ordered by priority and arrival time. The change would break that order.
        """
        arrival_time = session.arrival_time
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        session.arrival_time = arrival_time

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        self._listeners.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)  # type: ignore[misc]

    def _order_running(self, pace: Pace) -> None:
        now = self.clock()
        for request in self.running:
            request.arrival_time = self._listeners[request.request_id].note(pace, now, request.num_tokens)
        # Python's sort is stable, and takes one pass over a list that is in order already.
        self.running.sort(key=attrgetter("priority", "arrival_time"))

    def _find_group(self, pace: Pace) -> Group | None:
        """Returns the requests that have no audio yet; None if no audio is played before a request ends."""
        if not pace.heard_early:
            return None
        # Requests that wait for rows of the upstream stage are not in `running`, and delay no other request.
        lacks = [self._listeners[request.request_id].unheard(pace, request.num_tokens) for request in self.running]
        unheard = [steps for steps in lacks if steps]
        waiting = sum(map(_is_new, self.waiting))
        return Group(self._cost.line(), len(unheard), waiting, max(unheard, default=0))

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Returns whether a waiting request may join this step. If it may not, it keeps its place in the queue."""
        if not super()._handle_blocked_waiting_request(request):  # type: ignore[misc]
            return False
        if self._group is None or self._pace is None or not _is_new(request):
            return True
        if any(other.priority > request.priority for other in self.running):
            # A more urgent request joins, whatever that costs the others.
            return True
        return self._group.admits(request.num_prompt_tokens, self._pace.first_tokens)

    def _note_step(self, output: SchedulerOutput) -> None:
        # With asynchronous scheduling steps overlap: count a step from when the previous step ended.
        now = self.clock()
        for begun, at in self._begun:
            if begun is output and output.total_num_scheduled_tokens:
                self._cost.add(output.total_num_scheduled_tokens, now - max(at, self._last_end))
        self._last_end = now

    def reject(self, request_id: str, stop_reason: str) -> None:
        """End a request at the next `update_from_output`; its client gets finish reason abort and this stop reason.

        A request keeps the first reason. Unknown and finished ids are ignored.
        """
        if request_id in self.requests:
            self._rejected.setdefault(request_id, stop_reason)

    def _enrich(self, new_requests: list[NewRequestData]) -> None:
        for index, data in enumerate(new_requests):
            # Read the payload from the data, not in add_request: each part of a resumable request brings its own.
            raw = find_raw_payload(data.sampling_params, data.pooling_params)
            if raw is None:
                continue
            try:
                new_requests[index] = OmniNewRequestData.upgrade(data, decode_payload(raw, self._payload_limits))
            except OmniStageError as error:
                logger.warning("request %s ends, its payload cannot be read: %s", data.req_id, error)
                self._reject_payload(new_requests, index, str(error))
            except Exception:
                # One request must not take the engine down, whatever is wrong with it.
                logger.exception("request %s ends, reading its payload failed", data.req_id)
                self._reject_payload(new_requests, index, "internal error while reading the payload")

    def _reject_payload(self, new_requests: list[NewRequestData], index: int, message: str) -> None:
        data = new_requests[index]
        new_requests[index] = OmniNewRequestData.upgrade(data, payload_error=message)
        self.reject(data.req_id, f"{INVALID_PAYLOAD}: {message}")


class OmniScheduler(OmniSchedulerMixin, Scheduler):
    """vLLM's Scheduler with payloads."""


class OmniAsyncScheduler(OmniSchedulerMixin, AsyncScheduler):
    """vLLM's AsyncScheduler with payloads, for engines with async_scheduling (the default on GPUs)."""


def _awaits_media(request: Request) -> bool:
    """Returns whether the request has media in the part of its prompt that is not computed yet."""
    if not request.has_encoder_inputs:
        return False
    last = request.mm_features[-1].mm_position
    return bool(request.num_computed_tokens < last.offset + last.length)


def _is_new(request: Request) -> bool:
    """Returns whether none of the request's prompt was read. A preempted request, or a session's next part, is not
    new."""
    return request.num_computed_tokens == 0 and request.num_output_tokens == 0 and not request.num_preemptions


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
