"""The engine in this process, for tests and offline use: a thread steps it, coroutines talk to it.

vLLM's forward context is a module global, so two engines of one process must not step at the same time. The process's
only EngineThread steps them in turn, and nothing else touches them, so no lock is needed while a model runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor import Executor
from vllm.v1.metrics.stats import IterationStats

from omni_stage.errors import EngineDeadStageError, ModelExecutionError, NotReadyError
from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.core.interface import (
    END_STREAM,
    SERVE_EAGER,
    STEPS_IN_FLIGHT,
    CorePart,
    EngineCore,
    Params,
)
from omni_stage.vllm_adapter.core.output_processor import OmniOutputProcessor
from omni_stage.vllm_adapter.core.outputs import Capture, convert_output, translate_error
from omni_stage.vllm_adapter.core.thread import EngineThread


class InprocEngineCore(EngineCore):
    """EngineCore over InprocOmniLLM and the process' EngineThread."""

    def __init__(self, make_config: Callable[[], VllmConfig]) -> None:
        """See EngineCore."""
        super().__init__(make_config)
        self._thread = EngineThread.shared()
        self._llm: InprocOmniLLM | None = None
        self._closed = False

    @property
    def loaded_config(self) -> VllmConfig:
        """See EngineCore."""
        return self.llm.config

    @property
    def is_dead(self) -> bool:
        """Whether a step failed or the engine was shut down."""
        return self._llm is not None and self._llm.error is not None

    @property
    def llm(self) -> InprocOmniLLM:
        """The engine; only the engine's thread may use its attributes. Raises NotReadyError before start."""
        if self._llm is None:
            raise NotReadyError("the engine is not started")
        return self._llm

    async def start(self) -> None:
        """Load the model on the engine's thread."""
        self._llm = await asyncio.wrap_future(self._thread.submit(self._launch))

    async def serve_eager(self) -> None:
        """See EngineCore."""
        await self._ask_workers(SERVE_EAGER)
        core = self.llm.engine_core.engine_core
        await asyncio.wrap_future(self._thread.submit(lambda: setattr(core, STEPS_IN_FLIGHT, 1)))

    async def _ask_workers(self, method: str) -> list[Any]:
        client = self.llm.engine_core
        return await asyncio.wrap_future(self._thread.submit(lambda: client.collective_rpc(method)))

    async def stream(
        self,
        request_id: str,
        prompt: Mapping[str, Any],
        params: Params,
        *,
        priority: int = 0,
        on_submit: Callable[[], None] | None = None,
        traceparent: str = "",
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one request; closing the generator aborts it."""
        llm, sink = self.llm, self._new_sink()
        finished = False
        if on_submit is not None:
            on_submit()
        try:
            await self._call(lambda: llm.add(request_id, prompt, params, sink, priority))
            while not finished:
                output = await self._next(sink)
                finished = output.finish_reason is not None
                yield output
        finally:
            if not finished:
                await self._forget(request_id)

    async def stream_parts(
        self, request_id: str, parts: AsyncGenerator[CorePart, None], *, priority: int = 0
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one request whose input comes in parts; closing the generator aborts it."""
        llm, sink = self.llm, self._new_sink()
        finished = False
        try:
            async with aclosing(parts):
                async for part in parts:
                    await self._call(partial(llm.add_part, request_id, part, sink, priority))
                    ended = False
                    while not ended:
                        output = await self._next(sink)
                        ended = output.finish_reason is not None
                        finished = ended and part.last
                        yield output
                    if finished:
                        return
        finally:
            if not finished:
                await self._forget(request_id)

    @staticmethod
    def _new_sink() -> Sink:
        return Sink(asyncio.get_running_loop(), asyncio.Queue(), Capture())

    @staticmethod
    async def _next(sink: Sink) -> EngineStep:
        item = await sink.outputs.get()
        if isinstance(item, Exception):
            raise translate_error(item) from item
        return item

    async def _call(self, call: Callable[[], None]) -> None:
        """Run a call on the engine's thread. The call runs to its end even if this coroutine is cancelled."""
        try:
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(call)))
        except Exception as error:
            raise translate_error(error) from error

    async def _forget(self, request_id: str) -> None:
        """Abort a request. This runs after its submission, since the engine's thread keeps the order of calls."""
        llm = self.llm
        await asyncio.shield(asyncio.wrap_future(self._thread.submit(lambda: llm.abort(request_id))))

    async def abort(self, request_id: str) -> None:
        """See EngineCore."""
        llm = self._llm
        if llm is not None and llm.error is None:
            await asyncio.wrap_future(self._thread.submit(lambda: llm.cancel(request_id)))

    async def end_stream(self, stream: str) -> None:
        """See EngineCore."""
        llm = self._llm
        if llm is not None and llm.error is None:
            call = partial(llm.engine_core.collective_rpc, END_STREAM, args=(stream,))
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(call)))

    async def shutdown(self) -> None:
        """Free the model, also after a step failed. Calls after the first do nothing."""
        llm, thread = self._llm, self._thread
        if llm is None or self._closed:
            return
        self._closed = True

        def close() -> None:
            thread.unregister(llm)
            llm.shutdown()

        await asyncio.wrap_future(thread.submit(close))

    def _launch(self) -> InprocOmniLLM:
        config = self._create_config()
        llm = InprocOmniLLM(config)
        self._thread.register(llm)
        return llm


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
    """A vLLM engine in this process. Every method runs on the EngineThread.

    It consists of the same parts as vLLM 0.32's LLMEngine (`v1/engine/llm_engine.py`): renderer, InputProcessor and
    InprocClient, but with our own output processor. `add_part` does what AsyncLLM's `_add_streaming_input_request`
    does; LLMEngine has no such method.
    """

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
