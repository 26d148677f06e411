"""The engine as a process of its own: vLLM's AsyncLLM with our output processing, behind EngineCore.

vLLM 0.32 builds its OutputProcessor inside `AsyncLLM.__init__`. It also starts the output loop there if an event loop
runs; otherwise it starts the loop at the first request. The subclass replaces the processor with our own, made with the
same arguments, before the output loop starts.

The kernel ends the engine's process when the *thread* that started it ends (process/env.py). Loading takes many
seconds, during which the event loop must answer health checks. So the engine is created on a separate thread, which
lives until shutdown.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from vllm import PoolingParams
from vllm.config import VllmConfig
from vllm.engine.protocol import StreamingInput
from vllm.v1.engine.async_llm import AsyncLLM

from omni_stage.errors import ConfigurationError, EngineDeadStageError, NotReadyError, OmniStageError
from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.checks.gpu_driver import explain_cuda_failure
from omni_stage.vllm_adapter.core.interface import (
    COMPARE_WITH_EAGER,
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
from omni_stage.vllm_adapter.process.env import without_load_spans
from omni_stage.vllm_adapter.process.start_errors import StartError, collecting_start_errors
from omni_stage.vllm_adapter.process.template import template_processes

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
_PROCESSOR_END_S = 10.0


def _do_nothing() -> None:
    """Does nothing. Submitted to a thread, it ends once the thread's earlier calls have ended."""


class OmniAsyncLLM(AsyncLLM):
    """AsyncLLM whose output processor is an OmniOutputProcessor."""

    output_processor: OmniOutputProcessor

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_processor = OmniOutputProcessor.like(self.output_processor)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self._run_output_handler()

    def _run_output_handler(self) -> None:
        # The first call comes from AsyncLLM.__init__, when the processor is not ours yet.
        if isinstance(self.output_processor, OmniOutputProcessor):
            super()._run_output_handler()


@dataclass(slots=True)
class _Opened:
    """A request that vLLM may have registered."""

    capture: Capture
    outputs: AsyncGenerator[Any, None] | None = None
    first: bool = True
    finished: bool = False


class AsyncEngineCore(EngineCore):
    """EngineCore over OmniAsyncLLM."""

    def __init__(self, make_config: Callable[[], VllmConfig]) -> None:
        """See EngineCore."""
        super().__init__(make_config)
        self._thread = EngineThread("engine-launcher")
        self._llm: OmniAsyncLLM | None = None
        self._closed = False
        self._processor = asyncio.Lock()
        """Held by the request whose media are being processed."""

    @property
    def loaded_config(self) -> VllmConfig:
        """See EngineCore."""
        return self._engine.vllm_config

    @property
    def is_dead(self) -> bool:
        """Whether the engine's process ended or its output loop failed."""
        return self._closed or (self._llm is not None and bool(self._llm.errored))

    @property
    def _engine(self) -> OmniAsyncLLM:
        if self._llm is None:
            raise NotReadyError("the engine is not started")
        return self._llm

    async def start(self) -> None:
        """Start the engine's process and load the model."""
        self._llm = await self._on_thread(self._launch)
        # From here on an engine's death is noticed even while the engine is idle.
        self._llm._run_output_handler()
        await self._llm.get_supported_tasks()

    async def compare_with_eager(self) -> str:
        """See EngineCore."""
        try:
            differences: list[str] = await self._engine.collective_rpc(COMPARE_WITH_EAGER)
        except Exception as error:
            raise EngineDeadStageError(
                f"comparing the compiled model with its own code failed ({type(error).__name__}); the log above names "
                "the cause; with engineArgs.enforceEager nothing is compared"
            ) from error
        return next(filter(None, differences), "")

    async def serve_eager(self) -> None:
        """See EngineCore."""
        await self._ask_workers(SERVE_EAGER)
        try:
            # vLLM's engine process calls any method of its EngineCore by name.
            await self._engine.engine_core.call_utility_async("__setattr__", STEPS_IN_FLIGHT, 1)
        except Exception as error:
            raise EngineDeadStageError("the engine's process ended while it turned compiled code off") from error

    async def _ask_workers(self, method: str) -> list[Any]:
        try:
            answers: list[Any] = await self._engine.collective_rpc(method)
        except Exception as error:
            raise EngineDeadStageError(
                f"a worker failed at {method} ({type(error).__name__}); the log above names the cause"
            ) from error
        return answers

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
        llm = self._engine
        run = llm.encode if isinstance(params, PoolingParams) else llm.generate
        async with self._opened(request_id, traceparent) as opened:
            opened.capture.on_submit = on_submit
            opened.outputs = run(prompt, params, request_id, priority=priority)
            if prompt.get("multi_modal_data"):
                first = await self._first_of_media(opened)
                if first is None:
                    return
                yield first
            while (output := await self._next(opened)) is not None:
                yield output

    async def _first_of_media(self, opened: _Opened) -> EngineStep | None:
        """Returns the first output of a request with media. One request at a time enters vLLM's multimodal processor.

        vLLM 0.32 runs the processor on one thread, which cannot be ended and whose queue keeps the images of cancelled
        requests (`BaseRenderer._mm_executor`). So requests wait here, where they can be cancelled. A request that is
        cancelled during processing returns only when the thread is done (at most _PROCESSOR_END_S later), so that its
        memory stays reserved until then.
        """
        await self._processor.acquire()
        held, submitted = True, opened.capture.on_submit

        def on_submit() -> None:
            nonlocal held
            held = False
            self._processor.release()
            if submitted is not None:
                submitted()

        opened.capture.on_submit = on_submit
        try:
            return await self._next(opened)
        finally:
            if held:
                idle = asyncio.wrap_future(self._engine.renderer._mm_executor.submit(_do_nothing))
                try:
                    await asyncio.wait({idle}, timeout=_PROCESSOR_END_S)
                finally:
                    self._processor.release()

    async def stream_parts(
        self, request_id: str, parts: AsyncGenerator[CorePart, None], *, priority: int = 0
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one request whose input comes in parts; closing the generator aborts it."""
        llm = self._engine
        inbox: asyncio.Queue[CorePart] = asyncio.Queue()

        async def inputs() -> AsyncGenerator[StreamingInput, None]:
            # vLLM iterates this on a task of its own, which it cancels when the request is aborted.
            last = False
            while not last:
                part = await inbox.get()
                last = part.last
                yield StreamingInput(prompt=part.prompt, sampling_params=part.params)

        # No traceparent: vLLM's span of a request in parts has wrong times, such as negative ones in the queue.
        async with self._opened(request_id) as opened, aclosing(parts):
            async for part in parts:
                inbox.put_nowait(part)
                if opened.outputs is None:
                    # vLLM marks the end of the input with these parameters: they must not repeat the first part's rows.
                    closing = part.params.clone()
                    closing.extra_args = None
                    opened.outputs = llm.generate(inputs(), closing, request_id, priority=priority)
                while (output := await self._next(opened)) is not None:
                    yield output
                    if output.finish_reason is not None:
                        break
                if part.last or output is None:
                    return

    @asynccontextmanager
    async def _opened(self, request_id: str, traceparent: str = "") -> AsyncGenerator[_Opened, None]:
        """Yields a request with its capture, and removes it from every table however it ends."""
        llm = self._engine
        opened = _Opened(llm.output_processor.open_capture(request_id, traceparent))
        try:
            yield opened
        finally:
            # Closing the generator aborts a request that vLLM has added. A request that is cancelled while vLLM adds it
            # is aborted only by llm.abort below: vLLM 0.32 has registered it, but has not returned its queue yet.
            if opened.outputs is not None:
                await opened.outputs.aclose()
            llm.output_processor.close_capture(request_id)
            if not opened.finished and not llm.errored:
                await llm.abort(request_id)

    async def _next(self, opened: _Opened) -> EngineStep | None:
        """Returns vLLM's next output, converted; None if there are no more. Raises OmniStageError."""
        if opened.outputs is None:
            return None
        try:
            output = await anext(opened.outputs, None)
            if output is None:
                return None
            opened.finished = output.finished
            converted = convert_output(output, opened.capture, first=opened.first)
        except Exception as error:
            if self._engine.errored:
                raise EngineDeadStageError("the engine's process ended; the stage restarts") from error
            raise translate_error(error) from error
        opened.first = False
        return converted

    async def abort(self, request_id: str) -> None:
        """End a request."""
        if self._llm is not None and not self._llm.errored:
            await self._llm.abort(request_id)

    async def end_stream(self, stream: str) -> None:
        """See EngineCore."""
        if self._llm is not None and not self._llm.errored:
            await self._llm.collective_rpc(END_STREAM, args=(stream,))

    async def shutdown(self) -> None:
        """End the engine's process."""
        if self._closed:
            return
        self._closed = True
        if self._llm is not None:
            await self._on_thread(self._llm.shutdown)
        self._thread.stop()

    def _launch(self) -> OmniAsyncLLM:
        config = self._create_config()
        with collecting_start_errors() as find_start_error:
            try:
                with without_load_spans(), template_processes():
                    return OmniAsyncLLM.from_vllm_config(config)
            except (ValueError, TypeError) as error:
                raise ConfigurationError(
                    f"the engine refused its configuration: {error}", field="engineArgs"
                ) from error
            except Exception as error:
                found = find_start_error()
                if found is not None:
                    raise explain_start_error(found, torch.version.cuda) from error
                logger.exception("the engine did not start")
                raise EngineDeadStageError(
                    "the engine's process ended while it loaded the model; the log above names the cause"
                ) from error

    async def _on_thread(self, call: Callable[[], _T]) -> _T:
        future: asyncio.Future[_T] = asyncio.wrap_future(self._thread.submit(call))
        return await future


_OURS = (
    ("explicitly setting the `dtype` flag in CLI, for example: --dtype=half", "setting engineArgs.dtype to float16"),
    ("`max_model_len`", "engineArgs.maxModelLen"),
    ("`max_num_seqs`", "engineArgs.maxNumSeqs"),
    ("`gpu_memory_utilization`", "engineArgs.gpuMemoryUtilization"),
    ("No common block size for", "the attention backend does not support engineArgs.blockSize"),
)
"""vLLM 0.32's name of a setting -> our name. The first entry that a message contains gives the error's field."""
_LINK = re.compile(r"\s*See https?://\S+( for more details)?\.?")
_MOST_CHARACTERS = 600
_CACHE = " If engineArgs.kvCacheMemoryMib is set, the KV cache gets only that memory."
_MEMORY = (
    ". The model needs a larger GPU, or more GPUs (resources.limits), or quantized weights (engineArgs.quantization). "
    "If only its largest steps do not fit, lower engineArgs.maxNumSeqs and maxNumBatchedTokens"
)


def explain_start_error(error: StartError, torch_cuda: str | None) -> OmniStageError:
    """Returns the error that the stage ends with. `torch_cuda` is torch.version.cuda.

    It is a ConfigurationError if vLLM's message names a setting or the node's driver is at fault, else an
    EngineDeadStageError: starting again may help, for example when other processes have freed memory.

    vLLM's own messages say what is wrong, but name vLLM's settings.
    """
    if error.kind == ConfigurationError.__name__:
        return ConfigurationError(error.message, field=error.field)
    if meaning := explain_cuda_failure(error.message, torch_cuda):
        return ConfigurationError(meaning, field="nvidia.com/gpu")
    text = _LINK.sub("", " ".join(error.message.split()))[:_MOST_CHARACTERS].rstrip(". ")
    named = [ours for theirs, ours in _OURS if theirs in text]
    for theirs, ours in _OURS:
        text = text.replace(theirs, ours)
    if named:
        field = re.search(r"engineArgs\.\w+", named[0])
        return ConfigurationError(
            f"the engine cannot start: {text}." + (_CACHE if "KV cache" in text else ""),
            field=field.group() if field else "engineArgs",
        )
    remedy = _MEMORY if "out of memory" in text else ""
    text = text.replace("Decrease GPU memory utilization", "Decrease engineArgs.gpuMemoryUtilization")
    return EngineDeadStageError(
        f"the engine's process ended while it loaded the model: {error.kind}: {text}{remedy}; the log above has the "
        "traceback"
    )
