"""Output processing that takes the workers' tensors out of the outputs before vLLM detokenizes.

vLLM 0.32 forwards `pooler_output` with the tokens (`v1/core/sched/scheduler.py`). But its OutputProcessor takes every
output with `pooling_output` for the output of a pooling request, and does not detokenize it
(`v1/engine/output_processor.py`). The subclass moves these tensors to the request's Capture first. For pooling requests
it also keeps the stop reason and the time when they were scheduled, because vLLM's PoolingRequestOutput has no fields
for them.

Order: a tensor is kept before the output that it came with is handed to the request's queue, on the same thread. A
consumer that gets an output (vLLM may have merged several) therefore finds exactly the tensors of the tokens it got.
"""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.engine import EngineCoreEventType, EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine.output_processor import OutputProcessor, OutputProcessorOutput, RequestState
from vllm.v1.metrics.stats import IterationStats

from omni_stage.vllm_adapter.core.outputs import Capture
from omni_stage.vllm_adapter.media.video_audio import identify_pairs
from omni_stage.vllm_adapter.scheduling.playback import order_step


class OmniOutputProcessor(OutputProcessor):
    """vLLM's OutputProcessor with a Capture for each open request. Used from one thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._captures: dict[str, Capture] = {}

    @classmethod
    def like(cls, other: OutputProcessor) -> OmniOutputProcessor:
        """Returns a new processor with the constructor arguments of `other`."""
        return cls(
            other.tokenizer,
            log_stats=other.log_stats,
            stream_interval=other.stream_interval,
            # See do_tracing, which needs the statistics.
            tracing_enabled=other.log_stats,
            admission_stats=other.admission_stats,
        )

    def open_capture(self, request_id: str, traceparent: str = "") -> Capture:
        """Keep the tensors of the request with this external id. Call `close_capture` when the request ends."""
        capture = self._captures[request_id] = Capture(traceparent=traceparent)
        return capture

    def close_capture(self, request_id: str) -> None:
        """Forget the request's tensors."""
        self._captures.pop(request_id, None)

    def add_request(self, request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        """Register a request, with its own copy of the prompt token ids, and before it is sent to the engine core.

        In-process, vLLM's scheduler and this processor would extend the very same list when a resumable request
        continues (`apply_streaming_update`, `scheduler.py`), and the request would hang.
        """
        is_new = request.request_id not in self.request_states
        identify_pairs(request.mm_features or ())
        super().add_request(request, *args, **kwargs)
        if is_new:
            state = self.request_states[request.request_id]
            if state.prompt_token_ids is not None:
                state.prompt_token_ids = list(state.prompt_token_ids)
            # vLLM registers a request here once its input is processed, and sends it next (`AsyncLLM._add_request`).
            capture = self._captures.get(state.external_req_id)
            if capture is not None:
                params = request.sampling_params
                capture.is_structured = params is not None and params.structured_outputs is not None
                if capture.on_submit is not None:
                    capture.on_submit()

    def process_outputs(
        self, engine_core_outputs: list[EngineCoreOutput], *args: Any, **kwargs: Any
    ) -> OutputProcessorOutput:
        """Keep what vLLM's outputs have no fields for, then do what vLLM does.

        The outputs are ordered first (`order_step`): the tasks that read the requests' queues wake in that order.
        """
        ordered = order_step(engine_core_outputs, self._count_before)
        for output in ordered:
            self._peel(output)
        return super().process_outputs(ordered, *args, **kwargs)

    def do_tracing(
        self, engine_core_output: EngineCoreOutput, req_state: RequestState, iteration_stats: IterationStats | None
    ) -> None:
        """Make vLLM's span of a request that has ended, below the request's own span.

        vLLM 0.32 takes the parent from the request's `trace_headers`, which `AsyncLLM.add_request` drops unless vLLM
        exports spans itself. Its exporter supports no TLS and sets no service name. So the parent is set here, and the
        span goes to the process's provider (service/request/tracing.py). Pooling requests make no tokens, and no span.
        """
        capture = self._captures.get(req_state.external_req_id)
        if capture is None or req_state.detokenizer is None:
            return
        if capture.traceparent and iteration_stats is not None:
            engine_core_output.trace_headers = {"traceparent": capture.traceparent}
            super().do_tracing(engine_core_output, req_state, iteration_stats)

    def _count_before(self, output: EngineCoreOutput) -> int:
        state = self.request_states.get(output.request_id)
        capture = None if state is None else self._captures.get(state.external_req_id)
        return 0 if capture is None else capture.outputs

    def _peel(self, output: EngineCoreOutput) -> None:
        state = self.request_states.get(output.request_id)
        if state is None:
            return
        capture = self._captures.get(state.external_req_id)
        if capture is not None:
            capture.outputs += 1
        if state.detokenizer is not None:
            if output.pooling_output is not None and capture is not None:
                capture.tensors.append(output.pooling_output)
            output.pooling_output = None
            return
        if capture is not None:
            capture.scheduled_ns = _find_scheduled(output)
            if output.stop_reason is not None:
                capture.stop_reason = str(output.stop_reason)
        if output.pooling_output is None:
            # A pooling request that ends without a result would otherwise end the output loop with an AssertionError.
            output.pooling_output = torch.empty(0)


def _find_scheduled(output: EngineCoreOutput) -> int | None:
    """Returns time.monotonic_ns() when the output's request was first scheduled. A preemption does not count."""
    for event in output.events or ():
        if event.type == EngineCoreEventType.SCHEDULED:
            return int(event.timestamp * 1e9)
    return None
