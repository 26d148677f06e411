"""The engine in this process, for tests and offline use: a thread steps it, coroutines talk to it.

vLLM's forward context is a module global, so two engines of one process must not step at the same time. The process's
only EngineThread steps them in turn, and nothing else touches them, so no lock is needed while a model runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from vllm.config import VllmConfig

from omni_stage.errors import NotReadyError
from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.core.inproc_llm import InprocOmniLLM, Sink
from omni_stage.vllm_adapter.core.interface import COMPARE_WITH_EAGER, END_STREAM, CorePart, Params
from omni_stage.vllm_adapter.core.outputs import Capture, translate_error
from omni_stage.vllm_adapter.core.properties import EngineProperties
from omni_stage.vllm_adapter.core.thread import EngineThread


class InprocEngineCore(EngineProperties):
    """EngineCore over InprocOmniLLM and the process' EngineThread."""

    def __init__(self, make_config: Callable[[], VllmConfig]) -> None:
        """`make_config` is called on the engine's thread; it raises ConfigurationError."""
        super().__init__(make_config)
        self._thread = EngineThread.shared()
        self._llm: InprocOmniLLM | None = None
        self._closed = False

    @property
    def loaded_config(self) -> VllmConfig:
        """Configuration of the running engine. Raises NotReadyError before start."""
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

    async def compare_with_eager(self) -> str:
        """See EngineCore."""
        client = self.llm.engine_core

        def compare() -> str:
            return next(filter(None, client.collective_rpc(COMPARE_WITH_EAGER)), "")

        return await asyncio.wrap_future(self._thread.submit(compare))

    async def stream(
        self,
        request_id: str,
        prompt: Mapping[str, Any],
        params: Params,
        *,
        priority: int = 0,
        on_submit: Callable[[], None] | None = None,
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
        """End a request; its stream raises ModelExecutionError unless it is closed first."""
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
