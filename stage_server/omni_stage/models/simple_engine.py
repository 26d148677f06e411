"""SimpleEngine: the base class of an engine of an author's own, without vLLM and torch.

    class Voice(SimpleEngine):
        async def run(self, request):
            async for part in spoken_parts(request.source):
                yield StageStep(audio=await self.work(self.speak, part))
            yield StageStep(finish_reason=FinishReason.STOP)

The stage server's watchdog needs to know whether the engine is stuck. `work` counts for it, and `run` need not.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final, ParamSpec, TypeVar

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import ReceivedTensor, TensorSchema, TensorSpec
from omni_stage.errors import ConfigurationError, ModelExecutionError, OmniStageError
from omni_stage.exchange import Array, to_numpy
from omni_stage.models.component import ServedComponent, StageRequest, StageStep

DEFAULT_MODEL_LEN: Final = 32_768
_Args = ParamSpec("_Args")
_Made = TypeVar("_Made")


@dataclass(frozen=True)
class SimpleComponent:
    """A component that states nothing but its facts and the schemas of its edges."""

    facts: ComponentFacts
    input_schema: TensorSchema | None = None
    output_schema: TensorSchema | None = None

    @property
    def default_sampling(self) -> SamplingDefaults:
        """See ServedComponent."""
        return self.facts.default_sampling

    @property
    def voices(self) -> Sequence[str]:
        """See ServedComponent."""
        return self.facts.voices


class SimpleEngine(ABC):
    """A StageEngine whose requests run one by one in threads. For use from one event loop."""

    is_dead = False
    compiled_check_failed = False
    kernels_compiled = 0
    reused_rows = (0, 0)
    prompt_embeds: TensorSpec | None = None
    waiting_requests = 0

    def __init__(self, config: StageConfig, component: ServedComponent, *, threads: int = 1) -> None:
        """`threads`: how many calls of `work` run at the same time; others wait for their turn."""
        self.component = component
        self.max_model_len = config.engine_args.max_model_len or DEFAULT_MODEL_LEN
        self.last_step_monotonic = time.monotonic()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=config.stage)
        self._working = 0
        self._aborts: dict[str, asyncio.Future[None]] = {}

    @abstractmethod
    def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Yields the steps of one request; the last one has a finish_reason. Raises OmniStageError.

        It is an `async def` with `yield`. Whatever takes longer than a millisecond goes through `work`. The request's
        source is a UserPrompt at the entry, else an EdgeInput (mode Full) or an EdgeStream (mode Stream).
        """

    def load(self) -> None:  # noqa: B027 - an engine may have nothing to load
        """Load the model. Runs in a thread, once, before the stage is ready. Raises ConfigurationError."""

    def warmup_request(self) -> StageRequest | None:
        """Returns a request that runs before the stage is ready, so that the first client does not wait longer."""
        return None

    async def work(self, function: Callable[_Args, _Made], *args: _Args.args, **kwargs: _Args.kwargs) -> _Made:
        """Returns what the function returns, which runs in one of the engine's threads.

        While it runs, the engine has work, and its end is a step; a thread that never ends is a stuck engine. Raises
        ModelExecutionError for any error that is no OmniStageError.
        """
        if not self._working:
            self.last_step_monotonic = time.monotonic()
        self._working += 1
        loop = asyncio.get_running_loop()

        def note_end(_: Future[_Made]) -> None:
            with suppress(RuntimeError):  # the loop was closed while the thread worked
                loop.call_soon_threadsafe(self._note_end)

        future = self._threads.submit(function, *args, **kwargs)
        # Not of the awaiting task: a cancelled request leaves its thread at work.
        future.add_done_callback(note_end)
        try:
            return await asyncio.wrap_future(future)
        except OmniStageError:
            raise
        except Exception as error:
            raise ModelExecutionError(f"component {self.component.facts.id} failed: {type(error).__name__}") from error

    def _note_end(self) -> None:
        self._working -= 1
        self.last_step_monotonic = time.monotonic()

    @property
    def unfinished_requests(self) -> int:
        """Number of calls of `work` that have not ended. See StageEngine."""
        return self._working

    def open_tensors(self, received: Mapping[str, ReceivedTensor]) -> Mapping[str, Array]:
        """Returns numpy arrays, with bfloat16 as uint16."""
        return to_numpy(received)

    async def start(self) -> None:
        """Load the model and run the warm-up request. Raises ConfigurationError."""
        await self.work(self.load)
        request = self.warmup_request()
        if request is None:
            return
        try:
            async with aclosing(self.generate(request)) as steps:
                async for _ in steps:
                    pass
        except OmniStageError as error:
            raise ConfigurationError(f"the warm-up request of {self.component.facts.id} failed: {error}") from error

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run one request. Closing the generator ends it. Raises OmniStageError."""
        aborted = self._aborts[request.request_id] = asyncio.get_running_loop().create_future()
        steps = self.run(request)
        try:
            while (step := await _next_step(steps, aborted)) is not None:
                yield step
        finally:
            del self._aborts[request.request_id]
            aborted.cancel()
            await steps.aclose()

    async def abort(self, request_id: str) -> None:
        """End a request: its `generate` raises ModelExecutionError. Unknown ids are ignored."""
        aborted = self._aborts.get(request_id)
        if aborted is not None and not aborted.done():
            aborted.set_result(None)

    async def shutdown(self) -> None:
        """Let no further `work` begin. Idempotent."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def _next_step(steps: AsyncGenerator[StageStep, None], aborted: asyncio.Future[None]) -> StageStep | None:
    """Returns the next step; None after the last one. Raises ModelExecutionError if the request is aborted first."""
    coming = asyncio.ensure_future(anext(steps, None))
    try:
        await asyncio.wait((coming, aborted), return_when=asyncio.FIRST_COMPLETED)
        if aborted.done():
            raise ModelExecutionError("the request was aborted")
        return coming.result()
    finally:
        if not coming.done():
            coming.cancel()
            await asyncio.wait((coming,))
