"""DiffusionScheduler: schedules requests that a model completes in one step, together with autoregressive ones.

A diffusion request has pooling parameters with an omni payload. Every other request is scheduled as vLLM schedules it,
in the same queue. vLLM's own scheduling of pooling requests does most of the work: several requests run in one step,
and each ends with its first output. This class only

- bounds the payload bytes, the work and the number of diffusion requests in flight, in queue order,
- ends requests that waited too long (stop reason `queue_timeout`), requests with more tokens than a step takes, and
  requests whose output is missing or is not a dense CPU tensor,
- orders requests of equal priority by when they are due (scheduling/playback.py computes that time),
- sets the stop reason `diffusion_done` where vLLM leaves the stop reason empty,
- gives a request without tokens the one placeholder token that scheduling needs.

KV cache: a diffusion model declares none (IsAttentionFree), so vLLM makes no KV cache groups and `allocate_slots`
returns empty blocks. In an engine with a KV cache, the placeholder token takes one block for one step.

A forward that hangs blocks the engine's process, and with it this scheduler. So the watchdog is in the stage server.

Private interfaces of vLLM 0.32: the same as in `scheduling/scheduler.py`, which describes those used for admission and
order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from omni_stage.exchange import FinishReason
from omni_stage.payloads.additional_information import OMNI_DUE_KEY
from omni_stage.vllm_adapter.diffusion.admission import DiffusionSettings, StepAdmission, is_expired
from omni_stage.vllm_adapter.scheduling.payloads import find_raw_payload
from omni_stage.vllm_adapter.scheduling.scheduler import OmniSchedulerMixin
from omni_stage.vllm_adapter.wiring.names import QUEUE_TIMEOUT

logger = logging.getLogger(__name__)

INVALID_OUTPUT = "invalid_output"
"""Start of the stop reason of a request if its output from the worker is missing or cannot be sent."""
PROMPT_TOO_LONG = "prompt_too_long"
"""Start of the stop reason of a request with more tokens than one step takes."""

PLACEHOLDER_TOKEN_ID = 0
"""Stands for a prompt without tokens; the model ignores it."""


class DiffusionScheduler(OmniSchedulerMixin, Scheduler):
    """vLLM's Scheduler with diffusion requests. There is no variant of AsyncScheduler: output.py says why."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take vLLM's arguments. Raises ConfigurationError if additional_config holds wrong settings."""
        super().__init__(*args, **kwargs)
        self.settings = DiffusionSettings.from_additional_config(self.vllm_config.additional_config)
        self._admission = StepAdmission(self.settings)
        self._queued_at: dict[str, float] = {}

    def add_request(self, request: Request) -> None:
        """Queue a request as vLLM does. The queue timeout of a diffusion request starts here."""
        # vLLM's queue orders by priority and then by arrival time. So the arrival time is set to the time at which the
        # request is due, by one clock for all requests: the request whose audio runs out next comes first.
        request.arrival_time = find_due(request, self.clock())
        if not is_diffusion(request):
            super().add_request(request)
            return
        if request.num_prompt_tokens == 0:
            _add_placeholder_token(request)
        super().add_request(request)
        self._queued_at[request.request_id] = self.clock()
        maximum = self.max_num_scheduled_tokens
        if request.num_tokens > maximum:
            # It could never be scheduled, and would block all requests behind it.
            self.reject(request.request_id, f"{PROMPT_TOO_LONG}: one step takes at most {maximum} tokens")

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        """Schedule one step, with as many diffusion requests as the limits admit. vLLM schedules the other requests."""
        self._reject_expired()
        in_flight = [request for request in self.running if is_diffusion(request)]
        self._admission = StepAdmission(
            self.settings,
            in_flight_bytes=sum(map(payload_bytes, in_flight)),
            in_flight_work=sum(request.num_prompt_tokens for request in in_flight),
            in_flight_requests=len(in_flight),
        )
        return super().schedule(*args, **kwargs)

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """End the step's diffusion requests, each with its output. vLLM handles the other requests."""
        for request_id in scheduler_output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request.is_finished() or not is_diffusion(request):
                continue
            if request.num_computed_tokens < request.num_prompt_tokens:
                # This step has only some of its placeholder tokens: the step with the last one runs the request.
                continue
            problem = find_output_problem(model_runner_output, request_id)
            if problem:
                logger.error("request %s ends without output: %s", request_id, problem)
                self.reject(request_id, f"{INVALID_OUTPUT}: {problem}")
            else:
                request.stop_reason = request.stop_reason or FinishReason.DIFFUSION_DONE.value
        return super().update_from_output(scheduler_output, model_runner_output)

    def _handle_blocked_waiting_request(self, request: Request) -> bool:
        """Returns whether a waiting request may join this step. If it may not, it keeps its place in the queue."""
        if request.request_id in self._early_ends:
            return False
        if not super()._handle_blocked_waiting_request(request):
            return False
        if not is_diffusion(request):
            return True
        return self._admission.admit(payload_bytes(request), request.num_prompt_tokens)

    def _reject_expired(self) -> None:
        now = self.clock()
        for request_id, queued_at in list(self._queued_at.items()):
            request = self.requests.get(request_id)
            if request is None or request.status != RequestStatus.WAITING:
                del self._queued_at[request_id]
            elif is_expired(queued_at, now, self.settings.queue_timeout_s):
                del self._queued_at[request_id]
                logger.warning("request %s ends, it waited longer than %s s", request_id, self.settings.queue_timeout_s)
                self.reject(request_id, QUEUE_TIMEOUT)


def is_diffusion(request: Request) -> bool:
    """Returns whether the request is a diffusion request: one that has pooling parameters with an omni payload."""
    return request.pooling_params is not None and find_raw_payload(None, request.pooling_params) is not None


def find_due(request: Request, now: float) -> float:
    """Returns when the request is due, in seconds of the monotonic clock: the time that it carries, else `now`."""
    extra = getattr(request.pooling_params, "extra_kwargs", None)
    due = extra.get(OMNI_DUE_KEY) if isinstance(extra, Mapping) else None
    return float(due) if isinstance(due, int | float) and math.isfinite(due) else now


def payload_bytes(request: Request) -> int:
    """Returns the size of the request's payload in bytes; 0 if the payload is not bytes, which ends the request
    later."""
    raw = find_raw_payload(request.sampling_params, request.pooling_params)
    return len(raw) if isinstance(raw, bytes | bytearray | memoryview) else 0


def find_output_problem(output: ModelRunnerOutput, request_id: str) -> str:
    """Returns the problem of a diffusion request's output; empty if it is a tensor that can be sent."""
    index = output.req_id_to_index.get(request_id)
    values = output.pooler_output
    if index is None or not values or index >= len(values) or values[index] is None:
        return "the worker returned no output"
    value = values[index]
    if not isinstance(value, torch.Tensor):
        return "the worker returned something that is not a tensor"
    if value.layout != torch.strided or value.device.type != "cpu":
        return "the worker returned a tensor that is not dense or not on the CPU"
    return ""


def _add_placeholder_token(request: Request) -> None:
    # Scheduling no token is an assertion error in vLLM and would end the engine.
    request.prompt_token_ids = [PLACEHOLDER_TOKEN_ID]
    request.num_prompt_tokens = 1
    request._all_token_ids.append(PLACEHOLDER_TOKEN_ID)
    request.update_block_hashes()
