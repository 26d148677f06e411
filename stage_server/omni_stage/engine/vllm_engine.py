"""VllmStageEngine: runs a component on a vLLM engine.

request -> prepare (a thread) -> OmniEngineCoreRequest -> vLLM's input processor -> EngineCore
EngineCore -> EngineStep -> the emitter -> StageStep
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from vllm import SamplingParams
from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext

from omni_proto.stage_config import EdgeMode, StageConfig, StructuredOutput
from omni_proto.tensors import ReceivedTensor, TensorSpec, prompt_embeds_spec
from omni_stage.engine.arguments.byte_budget import default_byte_budget
from omni_stage.engine.arguments.engine_args import OmniEngineArgs, build_engine_args, load_model_config
from omni_stage.engine.preparation import Preparation, Preparers
from omni_stage.engine.requests.conflicts import EngineTraits
from omni_stage.engine.requests.lowering import Lowering, as_if_sampled
from omni_stage.engine.requests.sampling import check_stage_sampling
from omni_stage.engine.streamed import StreamedRuns, finish_reason
from omni_stage.engine.work import PartClock, WorkLedger
from omni_stage.errors import (
    ConfigurationError,
    EngineDeadStageError,
    InvalidMediaError,
    InvalidRequestError,
    NotReadyError,
    OmniStageError,
)
from omni_stage.exchange import Array, to_torch
from omni_stage.forms.trial_pool import TrialPool
from omni_stage.models.component import (
    Component,
    EdgeStream,
    Emitter,
    EngineInput,
    EngineStep,
    RunsAgain,
    StageRequest,
    StageStep,
    UserPrompt,
)
from omni_stage.payloads import PayloadLimits
from omni_stage.payloads.additional_information import OMNI_LATE_KEY
from omni_stage.vllm_adapter.checks.gpu_driver import check_gpu, explain_cuda_failure
from omni_stage.vllm_adapter.core.async_llm import AsyncEngineCore
from omni_stage.vllm_adapter.core.inproc import InprocEngineCore
from omni_stage.vllm_adapter.core.interface import EngineCore
from omni_stage.vllm_adapter.scheduling.sessions import Sessions
from omni_stage.vllm_adapter.structured import read_params
from omni_stage.vllm_adapter.wiring import names
from omni_stage.vllm_adapter.wiring.names import PAYLOAD_LIMITS

_log = logging.getLogger(__name__)
_COUNT_EVERY_S = 15.0
"""Seconds between two reads of the number of compiled kernels, for the metric."""


class VllmStageEngine:
    """A StageEngine that runs vLLM in a separate process, or (in_process) in a thread of this process.

    Used from one event loop.
    """

    def __init__(self, config: StageConfig, component: Component, *, in_process: bool = False) -> None:
        """Check the configuration; `start` loads the model. Raises ConfigurationError if it cannot work."""
        self.component = component
        self._config = config
        args = build_engine_args(config, component, on_cpu=current_platform.is_cpu(), byte_budget=default_byte_budget())
        self._model = load_model_config(Path(args.hf_config_path or config.model.path))
        self._args = args.for_checkpoint(self._model)
        _check_default_sampling(config, component)
        core_type = InprocEngineCore if in_process else AsyncEngineCore
        self._core: EngineCore = core_type(self._create_vllm_config)
        self.compiled_check_failed = False
        """Whether the start-up check turned compiled code and CUDA graphs off."""
        self.kernels_compiled = 0
        """See StageEngine."""
        self.reused_rows = (0, 0)
        """See StageEngine."""
        self._watch: asyncio.Task[None] | None = None
        self._runs: StreamedRuns | None = None
        """Set once the engine has started."""
        self._work = WorkLedger()
        self._preparers = Preparers()
        self._trials = TrialPool(lambda: asyncio.to_thread(self._core.describe_tokenizer))
        # An in-process engine takes requests on the thread that runs its steps, so a limit would also count the steps.
        self._prepare_s = None if in_process else config.timeouts.prepare

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and output together. Raises NotReadyError before start."""
        return self._core.max_model_len

    @property
    def prompt_embeds(self) -> TensorSpec | None:
        """See StageEngine. Raises NotReadyError before start."""
        if not self._args.enable_prompt_embeds:
            return None
        return prompt_embeds_spec(self._core.embeds_size, str(self._core.dtype).removeprefix("torch."))

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve; once true, it stays true."""
        return self._core.is_dead

    @property
    def max_requests(self) -> int:
        """Largest number of requests in a batch. Raises NotReadyError before start."""
        return self._core.session_room.sessions

    @property
    def unfinished_requests(self) -> int:
        """See StageEngine."""
        return len(self._work)

    @property
    def waiting_requests(self) -> int:
        """See StageEngine. Raises NotReadyError before start."""
        return self._started.waiting_requests

    @property
    def last_step_monotonic(self) -> float:
        """time.monotonic() of the last output of any request, or of the first submission after the engine was idle."""
        return self._work.last_step

    def open_tensors(self, received: Mapping[str, ReceivedTensor]) -> Mapping[str, Array]:
        """Returns the received tensors as torch tensors."""
        return to_torch(received)

    async def start(self) -> None:
        """Load the model and run all that serving can run, so that it compiles nothing. Raises OmniStageError."""
        try:
            check_gpu()
            await self._start()
        except RuntimeError as error:
            await self._core.shutdown()
            if meaning := explain_cuda_failure(str(error), torch.version.cuda):
                raise ConfigurationError(meaning, field="nvidia.com/gpu") from error
            raise
        except BaseException:
            await self._core.shutdown()
            raise

    async def _start(self) -> None:
        clock = PartClock()
        await self._core.start()
        clock.end("load")
        if not self.component.facts.kind.is_one_shot:
            if difference := await self._core.compare_with_eager():
                await self._serve_eager(difference)
            clock.end("compiled_check")
            await self._core.warm_steps()
            clock.end("warm_steps")
        core = self._core
        traits = EngineTraits(
            max_model_len=core.max_model_len,
            vocab_size=core.vocab_size,
            hidden_size=core.embeds_size if self._args.enable_prompt_embeds else None,
            embeds_dtype=core.dtype,
            limits=PayloadLimits.from_mapping(self._args.additional_config.get(PAYLOAD_LIMITS, {})),
        )
        lowering = Lowering(self.component, traits, core.generation_defaults, self._args.captures_rows)
        self._runs = StreamedRuns(core, lowering, self._work, Sessions(core.session_room))
        for request in _warmup_requests(self.component):
            await self._warm_up(request)
        clock.end("warm_requests")
        await self._core.kernels_compiled()
        _log.info("engine started", extra={"seconds": clock.parts})
        self._watch = asyncio.create_task(self._count_kernels())
        facts, setting = self.component.facts, self._config.engine_args.structured_output
        if facts.structures_text and setting is not StructuredOutput.NONE and self._prepare_s is not None:
            self._trials.warm()

    async def _warm_up(self, request: StageRequest) -> None:
        try:
            async with aclosing(self.generate(request)) as steps:
                async for _ in steps:
                    pass
        except EngineDeadStageError:
            raise
        except OmniStageError as error:
            raise ConfigurationError(f"the warm-up request of {self.component.facts.id} failed: {error}") from error

    async def _count_kernels(self) -> None:
        while not self.is_dead:
            await asyncio.sleep(_COUNT_EVERY_S)
            try:
                self.kernels_compiled = await self._core.kernels_compiled()
            except EngineDeadStageError:
                return

    async def _serve_eager(self, difference: str) -> None:
        """Continue with the code that the configured one was compared with: slower, but its outputs are correct."""
        _log.error(
            "compiled code or CUDA graphs do not compute what the model's own code computes on this machine: %s; "
            "the stage serves without them, as with engineArgs.enforceEager",
            difference,
        )
        self.compiled_check_failed = True
        await self._core.serve_eager()

    def generate(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Returns the steps of one request. Closing the generator aborts the request in the engine.

        Raises InvalidRequestError for sampling parameters that the stage refuses, before the first step is awaited.
        """
        component, stream = self.component, request.source
        is_streamed = isinstance(stream, EdgeStream)
        check_stage_sampling(request.sampling, component.facts, is_streamed=is_streamed, field="sampling")
        if not isinstance(stream, EdgeStream):
            return self._run_whole(request)
        if component.facts.kind.is_one_shot:
            return self._started.run_windows(request, stream)
        return self._started.run_session(request, stream)

    async def _run_whole(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Run a request whose input is complete: once, or as often as its emitter needs (RunsAgain)."""
        windows = self._started.windows
        request = replace(request, max_prompt_tokens=self.max_model_len - 1)
        prepare: Callable[[StageRequest], EngineInput] = self.component.prepare
        emitter: Emitter | None = None
        emitted: StageStep | None = None
        with self._work.open(request.request_id) as work:
            for number in itertools.count():
                preparation = Preparation(work, self._prepare_s)
                prepared = await preparation.within(self._preparers.run(prepare, request))
                if prepared.finished is not None:
                    yield StageStep(finish_reason=prepared.finished)
                    return
                emitter = emitter or self.component.emitter(request, prepared)
                core_id = f"{request.request_id}.{number}" if number else request.request_id
                windows[request.request_id] = core_id
                try:
                    async with aclosing(await self._submit(request, core_id, prepared, preparation)) as outputs:
                        try:
                            output = await preparation.within(anext(outputs, None))
                        except InvalidMediaError as error:
                            raise _place(error, request.source) from error
                        work.begin()
                        while output is not None:
                            self._work.note_step()
                            if output.reused_rows:
                                rows, size = self.reused_rows
                                self.reused_rows = rows + output.reused_rows, size + output.reused_bytes
                            reason = finish_reason(output, self.component.facts.kind)
                            # Copying takes longer than the rest of this loop, so a step is copied only if it changes.
                            step = output if reason is output.finish_reason else replace(output, finish_reason=reason)
                            emitted = emitter.emit(
                                step if prepared.reply is None else as_if_sampled(step, prepared.reply)
                            )
                            work.lend()
                            yield emitted
                            work.take_back()
                            output = await anext(outputs, None)
                finally:
                    windows.pop(request.request_id, None)
                if emitted is None or emitted.finish_reason is not None or not isinstance(emitter, RunsAgain):
                    return
                work.rest()
                prepare = partial(_next_input, emitter)

    async def _submit(
        self, request: StageRequest, core_id: str, prepared: EngineInput, preparation: Preparation
    ) -> AsyncGenerator[EngineStep, None]:
        """Returns the outputs of one run of the engine. core_id: the engine's id of the run."""
        lowering = self._started.lowering
        prompt, params = lowering.lower(request, prepared, lowering.params(request, prepared))
        compiles = isinstance(params, SamplingParams) and params.structured_outputs is not None
        if isinstance(params, SamplingParams) and compiles:
            await preparation.within(self._check_form(request, params))
        if isinstance(params, SamplingParams) and request.late_s:
            params.extra_args = {**(params.extra_args or {}), OMNI_LATE_KEY: request.late_s}
        on_submit = partial(preparation.submitted, compiles=compiles)
        return self._core.stream(
            core_id,
            prompt,
            params,
            priority=request.priority,
            on_submit=on_submit,
            traceparent=request.traceparent,
        )

    async def _check_form(self, request: StageRequest, params: SamplingParams) -> None:
        """Refuse a form of the text that is not enforced or costs too much, before the engine compiles it."""
        structured = request.source.structured if isinstance(request.source, UserPrompt) else None
        field = "start.chat.tools" if structured is None else f"start.structured_output.{structured.kind}"
        form = await asyncio.to_thread(read_params, params.structured_outputs, field)
        await self._trials.check(form, caller=request.caller, field=field)
        await asyncio.to_thread(self._core.check_structured, params, field)

    async def abort(self, request_id: str) -> None:
        """End a request. The reader of the request's steps gets a ModelExecutionError. Unknown ids are ignored."""
        windows = self._runs.windows if self._runs is not None else {}
        await self._core.abort(windows.get(request_id, request_id))

    async def shutdown(self) -> None:
        """End the engine and its processes. Idempotent."""
        self._preparers.shutdown()
        self._trials.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._core.shutdown()

    @property
    def _started(self) -> StreamedRuns:
        if self._runs is None:
            raise NotReadyError("the engine is still loading")
        return self._runs

    def _create_vllm_config(self) -> VllmConfig:
        """Returns vLLM's configuration. Runs on the engine's thread. Raises ConfigurationError."""
        kwargs = vllm_engine_kwargs(self._args, on_cpu=current_platform.is_cpu())
        try:
            # vLLM's defaults of max_num_batched_tokens and max_num_seqs depend on the usage context: a server gets
            # 8,192 and 1,024 on an H100, and 2,048 and 128 for each worker on a CPU; without a context, 2,048 and 128.
            return AsyncEngineArgs(**kwargs).create_engine_config(usage_context=UsageContext.OPENAI_API_SERVER)
        except ConfigurationError:
            raise
        except (ValueError, TypeError, KeyError, OSError, NotImplementedError) as error:
            raise ConfigurationError(
                f"vLLM refuses the model ({self._model.name}) or its arguments: {_first_lines(error)}",
                field="engineArgs",
            ) from error


def vllm_engine_kwargs(args: OmniEngineArgs, *, on_cpu: bool) -> dict[str, object]:
    """Returns keyword arguments of AsyncEngineArgs, with the worker and scheduler of the stage's kind and device."""
    # One backend, so that every request's form is checked by the backend that enforces it. With vLLM's default, "auto",
    # the first request of an engine chooses it for all. Only xgrammar enforces the tools' structural tags.
    kind: names.StageKind = "diffusion" if args.kind.is_one_shot else "autoregressive"
    return {"structured_outputs_config": StructuredOutputsConfig(backend="xgrammar")} | args.vllm_kwargs(
        worker_cls=names.worker_cls(kind, "cpu" if on_cpu else "cuda"),
        scheduler_cls=names.scheduler_cls(kind, bool(args.async_scheduling)),
    )


def _warmup_requests(component: Component) -> list[StageRequest]:
    """Returns the component's warm-up request, and a sampled one: it runs other kernels, and a seed a third kind."""
    first = component.warmup_request()
    if component.facts.kind.is_one_shot:
        return [first]
    sampled = {"temperature": 1.0, "top_k": 50, "top_p": 0.8}
    return [
        first,
        replace(first, request_id="warmup-sampled", sampling=first.sampling.model_copy(update=sampled)),
        replace(first, request_id="warmup-seeded", sampling=first.sampling.model_copy(update={**sampled, "seed": 0})),
    ]


def _check_default_sampling(config: StageConfig, component: Component) -> None:
    try:
        check_stage_sampling(
            config.default_sampling,
            component.facts,
            is_streamed=config.input is not None and config.input.mode is EdgeMode.STREAM,
            field="defaultSampling",
        )
    except InvalidRequestError as error:
        raise ConfigurationError(f"defaultSampling: {error}", field=error.details.field or "defaultSampling") from error


def _place(error: InvalidMediaError, source: object) -> InvalidMediaError:
    """Returns the error with the path of the medium, of which vLLM says only the kind."""
    _, _, kind = error.details.field.partition("multi_modal_data.")
    if not kind or not isinstance(source, UserPrompt):
        return error
    return InvalidMediaError(str(error), field=source.field_of_largest(kind))


def _next_input(emitter: RunsAgain, _: StageRequest) -> EngineInput:
    return emitter.next_input()


def _first_lines(error: Exception) -> str:
    """Returns the error's first 600 characters, on one line. The rest is dropped, because pydantic appends the whole
    input."""
    text = " ".join(str(error).split())
    return text[:600]
