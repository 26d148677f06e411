"""VllmStageEngine: a component over a vLLM engine.

request -> prepare (a thread) -> OmniEngineCoreRequest -> EngineCore -> EngineStep -> the emitter -> StageStep
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from vllm import PoolingParams, SamplingParams
from vllm.config import VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform

from omni_proto.stage_config import StageConfig
from omni_stage.engine.arguments import OmniEngineArgs, build_engine_args, load_model_config
from omni_stage.engine.requests import EngineTraits, OmniEngineCoreRequest
from omni_stage.engine.sampling import check_stage_sampling, lower_sampling
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
    EngineStep,
    FinishReason,
    StageInput,
    StageRequest,
    StageStep,
)
from omni_stage.vllm_adapter import select
from omni_stage.vllm_adapter.async_llm import AsyncEngineCore
from omni_stage.vllm_adapter.core import CoreOutput, EngineCore, Params
from omni_stage.vllm_adapter.inproc import InprocEngineCore

_FINISH_REASONS = {reason.value: reason for reason in FinishReason}


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
        self._traits: EngineTraits | None = None
        self._unfinished: set[str] = set()
        self._last_step = time.monotonic()

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together. Raises NotReadyError before start."""
        return self._core.max_model_len

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve; set for good."""
        return self._core.is_dead

    @property
    def unfinished_requests(self) -> int:
        """Requests that the engine has and that have not ended."""
        return len(self._unfinished)

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last output of any request, or of the submission that ended idleness."""
        return self._last_step

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
        self._traits = EngineTraits(
            max_model_len=core.max_model_len, vocab_size=core.vocab_size, uses_mrope=core.uses_mrope
        )
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
        component = self.component
        check_stage_sampling(request.sampling, component.kind, writes_text=component.writes_text, field="sampling")
        component.check_sampling(request.sampling)
        prepared = await asyncio.to_thread(component.prepare, request)
        if prepared.finished is not None:
            yield StageStep(finish_reason=prepared.finished)
            return
        prompt, params = self._lower(request, prepared)
        emitter = component.emitter(request, prepared)
        self._begin(request.request_id)
        try:
            async with aclosing(self._core.stream(request.request_id, prompt, params)) as outputs:
                async for output in outputs:
                    self._last_step = time.monotonic()
                    yield emitter.emit(_engine_step(output))
        finally:
            self._unfinished.discard(request.request_id)

    async def abort(self, request_id: str) -> None:
        """End a request: whoever reads its steps gets a ModelExecutionError. Unknown ids are ignored."""
        await self._core.abort(request_id)

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        await self._core.shutdown()

    def _begin(self, request_id: str) -> None:
        if request_id in self._unfinished:
            raise InvalidRequestError(f"request id {request_id!r} is in use; mint ids that are unique")
        if not self._unfinished:
            self._last_step = time.monotonic()
        self._unfinished.add(request_id)

    def _lower(self, request: StageRequest, prepared: StageInput) -> tuple[dict[str, object], Params]:
        """vLLM's prompt and parameters. Raises InvalidRequestError and its kin."""
        if self._traits is None:
            raise NotReadyError("the engine is still loading")
        lowered = OmniEngineCoreRequest.from_stage_input(
            request.request_id, prepared, self._params(request, prepared), want_rows=self._wants_rows(request)
        )
        return lowered.lower(self._traits)

    def _wants_rows(self, request: StageRequest) -> bool:
        return request.want_tensors and self._args.captures_rows

    def _params(self, request: StageRequest, prepared: StageInput) -> SamplingParams | PoolingParams:
        if self.component.kind is EngineKind.DIFFUSION:
            return PoolingParams()
        token_ids = prepared.prompt.get("prompt_token_ids")
        has_media = bool(prepared.prompt.get("multi_modal_data"))
        return lower_sampling(
            request.sampling,
            generation_defaults=self._core.generation_defaults,
            max_model_len=self._core.max_model_len,
            # Placeholders of media grow in the engine, so the length is not known here.
            prompt_len=None if token_ids is None or has_media else len(token_ids),
            writes_text=self.component.writes_text,
            stop_token_ids=prepared.stop_token_ids,
        )

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
        component.check_sampling(config.default_sampling)
    except InvalidRequestError as error:
        raise ConfigurationError(f"defaultSampling: {error}", field=error.details.field or "defaultSampling") from error


def _engine_step(output: CoreOutput) -> EngineStep:
    return EngineStep(
        token_ids=output.token_ids,
        text=output.text,
        prompt_token_ids=output.prompt_token_ids,
        tensors=output.tensors,
        finish_reason=None if output.finish_reason is None else _FINISH_REASONS[output.finish_reason],
        stop_reason=output.stop_reason,
        scheduled_ns=output.scheduled_ns,
    )


def _first_lines(error: Exception) -> str:
    """The error's first lines: pydantic appends the whole input behind them."""
    text = " ".join(str(error).split())
    return text[:600]
