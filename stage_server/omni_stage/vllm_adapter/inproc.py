"""The engine in this process, for tests and offline use: a thread steps it, coroutines talk to it.

vLLM's forward context is a module global, so two engines of one process must not step at once: all of them are stepped
by the one EngineThread of the process, in turns, and nothing else touches them. No lock is held while a model runs.

Built of the parts that vLLM 0.32's LLMEngine is built of (`v1/engine/llm_engine.py`): renderer, InputProcessor,
InprocClient; the output processor is ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vllm.config import VllmConfig
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.v1.engine.core_client import InprocClient
from vllm.v1.engine.input_processor import InputProcessor
from vllm.v1.executor import Executor
from vllm.v1.metrics.stats import IterationStats

from omni_stage.errors import EngineDeadStageError, ModelExecutionError, NotReadyError
from omni_stage.vllm_adapter.core import Capture, CoreOutput, Params, convert_output, translate_error
from omni_stage.vllm_adapter.engine_thread import EngineThread
from omni_stage.vllm_adapter.executor import keep_worker_in_engine
from omni_stage.vllm_adapter.output_processor import OmniOutputProcessor

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sink:
    """Where a request's outputs go: a queue on the event loop of its consumer."""

    loop: asyncio.AbstractEventLoop
    outputs: asyncio.Queue[CoreOutput | Exception]
    capture: Capture
    first: bool = True

    def put(self, item: CoreOutput | Exception) -> None:
        """Hand over, from the engine's thread."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.outputs.put_nowait, item)


class InprocOmniLLM:
    """A vLLM engine in this process. Every method runs on the EngineThread."""

    def __init__(self, config: VllmConfig) -> None:
        self.model_config = config.model_config
        self._renderer = renderer_from_config(config)
        self._inputs = InputProcessor(config, self._renderer)
        self.output_processor = OmniOutputProcessor(
            self._renderer.tokenizer, log_stats=True, stream_interval=config.scheduler_config.stream_interval
        )
        self.engine_core = InprocClient(config, Executor.get_class(config), log_stats=True)
        self._tasks = self.engine_core.get_supported_tasks()
        self._sinks: dict[str, _Sink] = {}
        self.error: Exception | None = None

    def add(self, request_id: str, prompt: Mapping[str, Any], params: Params, sink: _Sink) -> None:
        """Take a request. Raises what vLLM raises on a request it refuses."""
        if self.error is not None:
            raise EngineDeadStageError("the engine failed in an earlier step") from self.error
        request = self._inputs.process_inputs(request_id, prompt, params, supported_tasks=self._tasks)
        self._inputs.assign_request_id(request)
        sink.capture = self.output_processor.open_capture(request_id)
        try:
            self.output_processor.add_request(request, prompt.get("prompt"))
            self.engine_core.add_request(request)
        except Exception:
            self.abort(request_id)
            raise
        self._sinks[request_id] = sink

    def abort(self, request_id: str) -> None:
        """Forget a request, here and in the scheduler. Unknown ids are ignored."""
        self.engine_core.abort_requests(self.output_processor.abort_requests([request_id], internal=False))
        self.output_processor.close_capture(request_id)
        self._sinks.pop(request_id, None)

    def cancel(self, request_id: str) -> None:
        """Abort a request and tell its consumer."""
        sink = self._sinks.get(request_id)
        self.abort(request_id)
        if sink is not None:
            sink.put(ModelExecutionError("the engine aborted the request"))

    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return self.error is None and self.output_processor.has_unfinished_requests()

    def step(self) -> None:
        """One engine step; an exception ends the engine and every request in it, as in a process of its own."""
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
        except Exception as error:  # noqa: BLE001 - this request's alone
            sink.put(error)
            self.abort(output.request_id)
            return
        if output.finished:
            self.output_processor.close_capture(output.request_id)
            del self._sinks[output.request_id]

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error
        dead = EngineDeadStageError(f"the engine failed in a step ({type(error).__name__}); the stage restarts")
        for sink in self._sinks.values():
            sink.put(dead)
        self._sinks.clear()


class InprocEngineCore:
    """EngineCore over InprocOmniLLM and the process' EngineThread."""

    def __init__(self, make_config: Callable[[], VllmConfig]) -> None:
        """`make_config` is called on the engine's thread; it raises ConfigurationError."""
        self._make_config = make_config
        self._thread = EngineThread.shared()
        self._llm: InprocOmniLLM | None = None
        self._generation_defaults: dict[str, Any] = {}

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens."""
        return int(self.llm.model_config.max_model_len)

    @property
    def is_dead(self) -> bool:
        """Whether a step failed or the engine was shut down."""
        return self._llm is not None and self._llm.error is not None

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below this; None if the model has none."""
        return self.llm.model_config.get_vocab_size() or None

    @property
    def uses_mrope(self) -> bool:
        """Whether the model has M-RoPE positions."""
        return bool(self.llm.model_config.uses_mrope)

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling parameters of generation_config.json."""
        return self._generation_defaults

    @property
    def llm(self) -> InprocOmniLLM:
        """The engine; its attributes are the engine thread's. Raises NotReadyError before start."""
        if self._llm is None:
            raise NotReadyError("the engine is not started")
        return self._llm

    async def start(self) -> None:
        """Load the model on the engine's thread."""
        self._llm = await asyncio.wrap_future(self._thread.submit(self._launch))

    async def stream(
        self, request_id: str, prompt: Mapping[str, Any], params: Params
    ) -> AsyncGenerator[CoreOutput, None]:
        """Run one request; closing the generator aborts it."""
        llm = self.llm
        sink = _Sink(asyncio.get_running_loop(), asyncio.Queue(), Capture())
        submitted = self._thread.submit(lambda: llm.add(request_id, prompt, params, sink))
        finished = False
        try:
            try:
                await asyncio.shield(asyncio.wrap_future(submitted))
            except Exception as error:
                finished = True
                raise translate_error(error) from error
            while not finished:
                item = await sink.outputs.get()
                finished = isinstance(item, Exception) or item.finish_reason is not None
                if isinstance(item, Exception):
                    raise translate_error(item) from item
                yield item
        finally:
            if not finished:
                await asyncio.shield(asyncio.wrap_future(self._thread.submit(lambda: llm.abort(request_id))))

    async def abort(self, request_id: str) -> None:
        """End a request; its stream raises ModelExecutionError unless it is closed first."""
        llm = self._llm
        if llm is not None and llm.error is None:
            await asyncio.wrap_future(self._thread.submit(lambda: llm.cancel(request_id)))

    async def shutdown(self) -> None:
        """Free the model."""
        llm, thread = self._llm, self._thread
        if llm is None or llm.error is not None:
            return

        def close() -> None:
            thread.unregister(llm)
            llm.shutdown()

        await asyncio.wrap_future(thread.submit(close))

    def _launch(self) -> InprocOmniLLM:
        config = keep_worker_in_engine(self._make_config())
        self._generation_defaults = dict(config.model_config.get_diff_sampling_param())
        llm = InprocOmniLLM(config)
        self._thread.register(llm)
        return llm
