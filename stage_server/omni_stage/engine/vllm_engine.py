"""VllmStageEngine: a component over a vLLM engine.

request -> prepare (a thread) -> OmniEngineCoreRequest -> EngineCore -> EngineStep -> the emitter -> StageStep
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from omni_proto.stage_config import EdgeMode, StageConfig
from omni_stage.engine.arguments import OmniEngineArgs, build_engine_args, load_model_config
from omni_stage.engine.lowering import Lowering
from omni_stage.engine.requests import EngineTraits
from omni_stage.engine.sampling import check_stage_sampling, check_streamed_sampling
from omni_stage.engine.steps import engine_step, finish_reason
from omni_stage.engine.streamed import StreamedRuns
from omni_stage.engine.work import WorkLedger
from omni_stage.errors import (
    ConfigurationError,
    EngineDeadStageError,
    InvalidRequestError,
    NotReadyError,
    OmniStageError,
)
from omni_stage.models.component import (
    Component,
    EngineKind,
    StageRequest,
    StageStep,
)
from omni_stage.models.edge_stream import EdgeStream
from omni_stage.vllm_adapter import select
from omni_stage.vllm_adapter.async_llm import AsyncEngineCore
from omni_stage.vllm_adapter.core import EngineCore
from omni_stage.vllm_adapter.inproc import InprocEngineCore


class VllmStageEngine:
    """A StageEngine over vLLM: a process of its own, or (in_process) a thread of this one. One event loop uses it."""

    def __init__(self, config: StageConfig, component: Component, *, in_process: bool = False) -> None:
        """Nothing is loaded before `start`. Raises ConfigurationError on a configuration that cannot work."""
        self.component = component
        self._config = config
        self._args = build_engine_args(config, component, on_cpu=current_platform.is_cpu())
        load_model_config(Path(config.model.path))
        _check_default_sampling(config, component)
        core_type = InprocEngineCore if in_process else AsyncEngineCore
        self._core: EngineCore = core_type(self._create_vllm_config)
        self._runs: StreamedRuns | None = None
        """Set once the engine started."""
        self._work = WorkLedger()

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together. Raises NotReadyError before start."""
        return self._core.max_model_len

    @property
    def max_streamed(self) -> int | None:
        """Requests with streamed input that run at once; more wait. Raises NotReadyError before start."""
        return None if self.component.kind is EngineKind.DIFFUSION else self._core.max_sessions

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve; set for good."""
        return self._core.is_dead

    @property
    def unfinished_requests(self) -> int:
        """Requests that the engine has and that have not ended."""
        return len(self._work)

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last output of any request, or of the submission that ended idleness."""
        return self._work.last_step

    async def start(self) -> None:
        """Load the model and run one warm-up request."""
        try:
            await self._start()
        except BaseException:
            await self._core.shutdown()
            raise

    async def _start(self) -> None:
        core = self._core
        await core.start()
        traits = EngineTraits(max_model_len=core.max_model_len, vocab_size=core.vocab_size, uses_mrope=core.uses_mrope)
        lowering = Lowering(self.component, traits, core.generation_defaults, self._args.captures_rows)
        self._runs = StreamedRuns(core, lowering, self._work, asyncio.Semaphore(core.max_sessions))
        try:
            async with aclosing(self.generate(self.component.warmup_request())) as steps:
                async for _ in steps:
                    pass
        except EngineDeadStageError:
            raise
        except OmniStageError as error:
            raise ConfigurationError(f"the warm-up request of {self.component.id} failed: {error}") from error

    async def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run one request. Closing the generator aborts it in the engine."""
        async with aclosing(self._run(request)) as steps:
            async for step in steps:
                yield step

    def _run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        component, stream = self.component, request.source
        check_stage_sampling(request.sampling, component.kind, writes_text=component.writes_text, field="sampling")
        component.check_sampling(request.sampling)
        if not isinstance(stream, EdgeStream):
            return self._run_whole(request)
        check_streamed_sampling(request.sampling, field="sampling")
        if component.kind is EngineKind.DIFFUSION:
            return self._started.run_windows(request, stream)
        return self._started.run_session(request, stream)

    async def _run_whole(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """A request whose input is complete."""
        lowering = self._started.lowering
        prepared = await asyncio.to_thread(self.component.prepare, request)
        if prepared.finished is not None:
            yield StageStep(finish_reason=prepared.finished)
            return
        prompt, params = lowering.lower(request, prepared, lowering.params(request, prepared))
        emitter = self.component.emitter(request, prepared)
        with self._work.open(request.request_id):
            async with aclosing(self._core.stream(request.request_id, prompt, params)) as outputs:
                async for output in outputs:
                    self._work.note_step()
                    yield emitter.emit(engine_step(output, finish_reason(output)))

    async def abort(self, request_id: str) -> None:
        """End a request: whoever reads its steps gets a ModelExecutionError. Unknown ids are ignored."""
        windows = self._runs.windows if self._runs is not None else {}
        await self._core.abort(windows.get(request_id, request_id))

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        await self._core.shutdown()

    @property
    def _started(self) -> StreamedRuns:
        if self._runs is None:
            raise NotReadyError("the engine is still loading")
        return self._runs

    def _create_vllm_config(self) -> VllmConfig:
        """Runs on the engine's thread. Raises ConfigurationError."""
        kwargs = vllm_engine_kwargs(self._args, on_cpu=current_platform.is_cpu())
        try:
            return AsyncEngineArgs(**kwargs).create_engine_config()
        except ConfigurationError:
            raise
        except (ValueError, TypeError, KeyError, OSError, NotImplementedError) as error:
            raise ConfigurationError(
                f"vLLM refuses the model or its arguments: {_first_lines(error)}", field="engineArgs"
            ) from error


def vllm_engine_kwargs(args: OmniEngineArgs, *, on_cpu: bool) -> dict[str, object]:
    """Keyword arguments of AsyncEngineArgs with the worker and scheduler of the stage's kind and device."""
    kind: select.StageKind = "diffusion" if args.kind is EngineKind.DIFFUSION else "autoregressive"
    return args.vllm_kwargs(
        worker_cls=select.worker_cls(kind, "cpu" if on_cpu else "cuda"),
        scheduler_cls=select.scheduler_cls(kind, bool(args.async_scheduling)),
    )


def _check_default_sampling(config: StageConfig, component: Component) -> None:
    try:
        check_stage_sampling(
            config.default_sampling, component.kind, writes_text=component.writes_text, field="defaultSampling"
        )
        if config.input is not None and config.input.mode is EdgeMode.STREAM:
            check_streamed_sampling(config.default_sampling, field="defaultSampling")
        component.check_sampling(config.default_sampling)
    except InvalidRequestError as error:
        raise ConfigurationError(f"defaultSampling: {error}", field=error.details.field or "defaultSampling") from error


def _first_lines(error: Exception) -> str:
    """The error's first lines: pydantic appends the whole input behind them."""
    text = " ".join(str(error).split())
    return text[:600]
