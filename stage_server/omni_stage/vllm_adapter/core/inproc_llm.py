"""A vLLM engine in this process, stepped by the process' EngineThread.

It consists of the same parts as vLLM 0.32's LLMEngine (`v1/engine/llm_engine.py`): renderer, InputProcessor and
InprocClient, but with our own output processor. `add_part` does what AsyncLLM's `_add_streaming_input_request` does;
LLMEngine has no such method.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor import Executor
from vllm.v1.metrics.stats import IterationStats

from omni_stage.errors import EngineDeadStageError, ModelExecutionError
from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.core.interface import CorePart, Params
from omni_stage.vllm_adapter.core.output_processor import OmniOutputProcessor
from omni_stage.vllm_adapter.core.outputs import Capture, convert_output

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Sink:
    """Where a request's outputs go: a queue on the event loop of its consumer."""

    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[EngineStep | Exception]
    capture: Capture
    first: bool = True

    def put(self, item: EngineStep | Exception) -> None:
        """Hand an item to the consumer; called on the engine's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, item)


class InprocOmniLLM:
    """A vLLM engine in this process. Every method runs on the EngineThread."""

    def __init__(self, config: VllmConfig) -> None:
        self.config = config
        self.model_config = config.model_config
        self._renderer = renderer_from_config(config)
        self._inputs = InputProcessor(config, self._renderer)
        self.output_processor = OmniOutputProcessor(
            self._renderer.tokenizer, log_stats=True, stream_interval=config.scheduler_config.stream_interval
        )
        self.engine_core = InprocClient(config, Executor.get_class(config), log_stats=True)
        self._tasks = self.engine_core.get_supported_tasks()
        self._sinks: dict[str, Sink] = {}
        self._sessions: dict[str, str] = {}
        """Our id -> vLLM's id, for requests whose input comes in parts."""
        self.error: Exception | None = None

    def add(self, request_id: str, prompt: Mapping[str, Any], params: Params, sink: Sink, priority: int = 0) -> None:
        """Take a request. Raises vLLM's exception if vLLM refuses the request, and EngineDeadStageError."""
        if self.error is not None:
            raise EngineDeadStageError("the engine failed in an earlier step") from self.error
        request = self._inputs.process_inputs(
            request_id, prompt, params, supported_tasks=self._tasks, priority=priority
        )
        self._inputs.assign_request_id(request)
        sink.capture = self.output_processor.open_capture(request_id)
        try:
            self.output_processor.add_request(request, prompt.get("prompt"))
            self.engine_core.add_request(request)
        except Exception:
            self.abort(request_id)
            raise
        self._sinks[request_id] = sink

    def add_part(self, request_id: str, part: CorePart, sink: Sink, priority: int = 0) -> None:
        """Take one part of a request's input, as AsyncLLM's `_add_streaming_input_request` does for each part."""
        if self.error is not None:
            raise EngineDeadStageError("the engine failed in an earlier step") from self.error
        internal_id = self._sessions.get(request_id)
        if internal_id is None:
            sink.capture = self.output_processor.open_capture(request_id)
        try:
            internal_id = self._submit(request_id, internal_id, part.prompt, part.params, priority, resumable=True)
            if part.last:
                # Submit the end before the next step, so that the part's last output is marked as finished.
                closing = part.params.clone()
                closing.extra_args = None
                self._submit(request_id, internal_id, {"prompt_token_ids": [0]}, closing, priority, resumable=False)
        except Exception:
            self.abort(request_id)
            raise
        self._sessions[request_id] = internal_id
        self._sinks[request_id] = sink

    def _submit(
        self,
        request_id: str,
        internal_id: str | None,
        prompt: Mapping[str, Any],
        params: SamplingParams,
        priority: int,
        *,
        resumable: bool,
    ) -> str:
        """Pass a part, or the end (not resumable), to output processor and scheduler. Returns vLLM's request id."""
        request = self._inputs.process_inputs(
            internal_id or request_id,
            prompt,
            params,
            supported_tasks=self._tasks,
            resumable=resumable,
            priority=priority,
        )
        if internal_id is None:
            self._inputs.assign_request_id(request)
        else:
            request.external_req_id = request_id
        self.output_processor.add_request(request, None)
        self.engine_core.add_request(request)
        return str(request.request_id)

    def abort(self, request_id: str) -> None:
        """Forget a request, here and in the scheduler. Unknown ids are ignored."""
        self.engine_core.abort_requests(self.output_processor.abort_requests([request_id], internal=False))
        self.output_processor.close_capture(request_id)
        self._sinks.pop(request_id, None)
        self._sessions.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Abort a request and notify its consumer."""
        sink = self._sinks.get(request_id)
        self.abort(request_id)
        if sink is not None:
            sink.put(ModelExecutionError("the engine aborted the request"))

    def has_work(self) -> bool:
        """Returns whether a step would do anything. It would not if all requests wait for their next part.

        Like `EngineCoreProc.has_work`, this counts steps in flight: with asynchronous scheduling, a step may outlive
        its requests.
        """
        core = self.engine_core.engine_core
        return self.error is None and bool(core.scheduler.has_requests() or core.batch_queue)

    def step(self) -> None:
        """Run one engine step. An exception ends the engine and all its requests, as it ends an engine's process."""
        try:
            outputs = self.engine_core.get_output()
            stats = IterationStats() if outputs.outputs else None
            processed = self.output_processor.process_outputs(outputs.outputs, outputs.timestamp, stats)
            if processed.reqs_to_abort:
                self.engine_core.abort_requests(processed.reqs_to_abort)
        except Exception as error:
            logger.exception("a step of the in-process engine failed")
            self._fail(error)
            return
        for output in processed.request_outputs:
            self._deliver(output)

    def shutdown(self) -> None:
        """Free the model."""
        self._fail(EngineDeadStageError("the engine was shut down"))
        self._renderer.shutdown()
        self.engine_core.shutdown()

    def _deliver(self, output: RequestOutput | PoolingRequestOutput[Any]) -> None:
        sink = self._sinks.get(output.request_id)
        if sink is None:
            return
        try:
            sink.put(convert_output(output, sink.capture, first=sink.first))
            sink.first = False
        except Exception as error:  # noqa: BLE001 - ends this request only
            sink.put(error)
            self.abort(output.request_id)
            return
        if output.finished:
            self.output_processor.close_capture(output.request_id)
            self._sessions.pop(output.request_id, None)
            del self._sinks[output.request_id]

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error
        dead = EngineDeadStageError(f"the engine failed in a step ({type(error).__name__}); the stage restarts")
        for sink in self._sinks.values():
            sink.put(dead)
        self._sinks.clear()
