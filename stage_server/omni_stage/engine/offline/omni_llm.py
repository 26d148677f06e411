"""OmniLLM: a whole pipeline offline, in this process. If several engines use GPUs, each engine has its own process.

OmniLLM reads the same OmniPipeline as the operator, compiles it to the same StageConfigs, and runs the same
StageEngines and components as the stage servers, without gRPC. All edges are Full: a stage starts when its input is
complete. Stages that read the same input stage run concurrently.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from omni_proto.brief import Brief
from omni_proto.pipeline import OmniPipeline, stages_for_outputs
from omni_proto.stage_config import Modality, StageConfig
from omni_stage.engine.offline.inputs import (
    ModelDir,
    Prompt,
    StageSampling,
    check_edges,
    compile_offline,
    pair_sampling,
    parse_prompt,
    parse_sampling,
    read_pipeline,
)
from omni_stage.engine.offline.stage_llm import StageLLM, StageResult
from omni_stage.errors import InvalidRequestError, OmniStageError
from omni_stage.models.component import EdgeInput, FinishReason, TextPart, UserPrompt

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, repr=False)
class OmniResult(Brief):
    """A pipeline's result for one prompt."""

    stages: Mapping[str, StageResult]
    """By stage name, in the order of the graph; stages that the result did not need are absent."""
    text: str = ""
    """The answer: the text of the last stage that returns text."""
    transcript: str = ""
    """What the entry stage heard, if it returns a Transcript."""
    audio: torch.Tensor | None = None
    """float32 [samples] in [-1, 1]; None if no stage returned audio."""
    sample_rate_hz: int = 0

    @property
    def cut_stages(self) -> tuple[str, ...]:
        """Stages whose output reached its maximum length, so that text or speech is missing at the end."""
        return tuple(name for name, stage in self.stages.items() if stage.finish_reason is FinishReason.LENGTH)


class AsyncOmniLLM:
    """Runs a pipeline offline, for asyncio. `await start()` first, `await shutdown()` last, on one event loop."""

    def __init__(self, pipeline: OmniPipeline | str | Path, *, model_dir: ModelDir | None = None) -> None:
        """Read and check the pipeline. `start` loads the models.

        pipeline: an OmniPipeline or the path of its file. model_dir: the checkpoint's directory in place of spec.model,
        or directories by stage name. Raises ConfigurationError, EdgeSchemaMismatchError.
        """
        self.pipeline = read_pipeline(pipeline)
        self.configs = compile_offline(self.pipeline, model_dir)
        alone = len(self.configs) == 1
        self._stages = {config.stage: StageLLM(config, alone=alone) for config in self.configs}
        components = {name: stage.engine.component for name, stage in self._stages.items()}
        check_edges(self.configs, components)
        limit = min(config.limits.max_concurrent_requests for config in self.configs)
        self._slots = asyncio.Semaphore(limit)

    async def start(self) -> None:
        """Load every stage's model, one after another. Raises ConfigurationError, EngineDeadStageError."""
        try:
            for stage in self._stages.values():
                await stage.start()
        except BaseException:
            await self.shutdown()
            raise

    async def generate(
        self,
        prompt: Prompt,
        sampling: StageSampling | None = None,
        *,
        seed: int | None = None,
        modalities: Sequence[Modality | str] = (),
        voice: str = "",
    ) -> OmniResult:
        """Run one prompt through the pipeline. Many calls may run concurrently.

        sampling: parameters by stage name. seed: the seed of every stage whose sampling sets none. modalities: what to
        return; by default, everything that the pipeline declares. Stages that these modalities do not need are not
        called. voice: the voice of the stages that speak; empty for their default. Raises OmniStageError. An error from
        a stage has a note that names the stage.
        """
        source = parse_prompt(prompt)
        chosen = parse_sampling(sampling, list(self._stages))
        needed = self._needed_stages(modalities)
        speaks = [name for name in needed if self._stages[name].engine.component.voices]
        if voice and not speaks:
            raise InvalidRequestError("no stage of this request speaks; leave the voice out", field="voice")
        results: dict[str, StageResult] = {}
        answering = self.configs[0].answering_stage

        source, context = self._pass_on(source, answers=answering in needed)

        async def run(config: StageConfig, stage_source: UserPrompt | EdgeInput) -> None:
            name = config.stage
            readers = [edge.stage for edge in config.downstream if edge.stage in needed]
            try:
                results[name] = await self._stages[name].generate(
                    stage_source,
                    chosen.get(name),
                    seed=seed,
                    voice=voice if name in speaks else "",
                    want_tensors=bool(readers),
                )
            except OmniStageError as error:
                error.add_note(f"in stage {name}")
                raise
            if not readers:
                return
            published = self._published(name, results[name])
            # The readers run concurrently; the first one that fails cancels the others.
            await _gather(
                run(self._stages[reader].config, EdgeInput(published, context if reader == answering else None))
                for reader in readers
            )

        async with self._slots:
            await run(self.configs[0], source)
        return self._result(needed, results)

    async def shutdown(self) -> None:
        """End every engine and free its model. Idempotent."""
        for stage in self._stages.values():
            await stage.shutdown()

    def _needed_stages(self, modalities: Sequence[Modality | str]) -> list[str]:
        try:
            outputs = [Modality(item) for item in modalities]
            return [stage.name for stage in stages_for_outputs(self.pipeline, outputs)]
        except ValueError as error:
            raise InvalidRequestError(str(error), field="modalities") from error

    def _pass_on(self, source: UserPrompt, *, answers: bool) -> tuple[UserPrompt, UserPrompt | None]:
        """Returns the entry's prompt, and what the stage that answers reads beside the text of its edge; see EdgeInput.

        answers: whether that stage runs.
        """
        entry = self.configs[0]
        if not answers or not entry.passes_on(self._stages[entry.stage].engine.component.facts.transcribes):
            return source, None
        messages = list(source.messages or ())
        last = [] if source.reply else messages[-1:]
        written = bool(last) and all(isinstance(part, TextPart) for part in last[0].parts)
        earlier = messages if written else messages[:-1]
        context = UserPrompt(messages=earlier, written=written, reply=source.reply, tools=source.tools)
        is_needed = earlier or source.reply or source.tools
        return replace(source, written=written), context if is_needed else None

    def _published(self, name: str, result: StageResult) -> dict[str, torch.Tensor]:
        """Returns the stage's tensors, with an empty one for each tensor of its schema that has no rows."""
        schema = self._stages[name].engine.component.output_schema
        if schema is None:
            return dict(result.tensors)
        missing = (spec for spec in schema.tensors if spec.name not in result.tensors)
        empty = {spec.name: torch.empty((0, *spec.row_shape), dtype=getattr(torch, spec.dtype)) for spec in missing}
        return {**result.tensors, **empty}

    def _result(self, needed: Sequence[str], results: Mapping[str, StageResult]) -> OmniResult:
        ordered = {name: results[name] for name in needed}
        declared = {config.stage: config.outputs for config in self.configs}
        text = next((ordered[name].text for name in reversed(needed) if Modality.TEXT in declared[name]), "")
        heard = next((ordered[name].text for name in needed if Modality.TRANSCRIPT in declared[name]), "")
        spoken = [result for name, result in ordered.items() if Modality.AUDIO in declared[name]]
        audio = next((result for result in spoken if result.audio is not None), None)
        if audio is None:
            return OmniResult(ordered, text, heard)
        return OmniResult(ordered, text, heard, audio.audio, audio.sample_rate_hz)


class OmniLLM:
    """Runs a pipeline offline, blocking: `OmniLLM("pipeline.yaml", model_dir=...).generate(["Hello"])`.

    The constructor loads the models. An OmniLLM is a context manager. Its event loop runs in a thread of its own.
    """

    def __init__(self, pipeline: OmniPipeline | str | Path, *, model_dir: ModelDir | None = None) -> None:
        """Read, check and load the pipeline; see AsyncOmniLLM. Raises OmniStageError."""
        self._llm = AsyncOmniLLM(pipeline, model_dir=model_dir)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="omni-llm", daemon=True)
        self._thread.start()
        try:
            self._run(self._llm.start())
        except BaseException:
            self._stop_loop()
            raise

    @property
    def configs(self) -> Sequence[StageConfig]:
        """The stages, in the order of the graph."""
        return self._llm.configs

    def generate(
        self,
        prompts: str | Sequence[Prompt],
        sampling: StageSampling | Sequence[StageSampling | None] | None = None,
        *,
        seed: int | None = None,
        modalities: Sequence[Modality | str] = (),
        voice: str = "",
    ) -> list[OmniResult]:
        """Run a batch. Returns the results in the order of the prompts.

        sampling: one mapping by stage name for all prompts, or a list with one mapping for each prompt. seed,
        modalities and voice apply to every prompt; see AsyncOmniLLM.generate. Raises the OmniStageError of the first
        prompt that fails, and aborts the others.
        """
        if not self._thread.is_alive():
            raise InvalidRequestError("this OmniLLM was shut down; make a new one")
        batch = [prompts] if isinstance(prompts, str) else list(prompts)
        samplings = pair_sampling(batch, sampling)

        async def run_all() -> list[OmniResult]:
            calls = (
                self._llm.generate(prompt, chosen, seed=seed, modalities=modalities, voice=voice)
                for prompt, chosen in zip(batch, samplings, strict=True)
            )
            return await _gather(calls)

        return self._run(run_all())

    def shutdown(self) -> None:
        """Free every model and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._run(self._llm.shutdown())
            self._stop_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    def _run(self, call: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _gather(calls: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Returns all results, in the order of the calls. If a call fails, cancels and awaits the others, then raises the
    first error."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
