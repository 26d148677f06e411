"""Engines for the stages of a tiny Qwen-Omni checkpoint, built in the test process, and requests to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from omni_proto.stage_config import (
    DownstreamStage,
    EngineArgs,
    InputEdge,
    Limits,
    Modality,
    ModelSource,
    SamplingDefaults,
    StageConfig,
)
from omni_stage.engine.factory import build_stage_engine
from omni_stage.engine.protocol import StageEngine
from omni_stage.engine.requests.sampling import resolve_sampling
from omni_stage.models.component import EdgeInput, FinishReason, StageRequest, StageStep, UserPrompt
from support.models.reference import Reference, ReferencePrompt, ReferenceSettings
from support.processes.stage_processes import STAGES

AUDIO_STAGES = {family: stages[-1] for family, stages in STAGES.items()}
"""The last stage of each family's pipeline."""
_PREVIOUS = {"talker": "thinker", "token2wav": "talker", "code2wav": "talker"}
_OUTPUTS = {"thinker": [Modality.TEXT], "talker": []}
_ids = count()


def stage_config(
    stage: str,
    checkpoint: Path,
    max_media: int = 4,
    tensor_parallel_size: int = 1,
    family: str = "qwen2_5_omni",
    **engine_args: Any,
) -> StageConfig:
    """Returns the configuration of one stage: a small engine in eager mode."""
    settings: dict[str, Any] = {"max_num_seqs": 8, "enforce_eager": True}
    audio_stage = AUDIO_STAGES[family]
    if stage != audio_stage:
        settings |= {"max_model_len": 1024, "kv_cache_memory_mib": 16, "max_num_batched_tokens": 1024}
    below = {"thinker": "talker", "talker": audio_stage}.get(stage)
    return StageConfig(
        pipeline="test",
        stage=stage,
        component=f"{family}/{stage}",
        model=ModelSource(path=str(checkpoint)),
        input=InputEdge(source=_PREVIOUS[stage]) if stage in _PREVIOUS else None,
        outputs=_OUTPUTS.get(stage, [Modality.AUDIO]),
        downstream=[]
        if below is None
        else [DownstreamStage(stage=below, target="127.0.0.1:1", component=f"{family}/{below}", stages=[below])],
        engine_args=EngineArgs(**{**settings, **engine_args}),
        limits=Limits(max_media_per_request=max_media),
        tensor_parallel_size=tensor_parallel_size,
    )


def receive(step: StageStep) -> dict[str, torch.Tensor]:
    """Returns the step's tensors as the downstream stage gets them: all of them as torch tensors."""
    return {name: torch.as_tensor(rows) for name, rows in step.tensors.items()}


@dataclass
class Collected:
    """Everything that a stage returned for one request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    cached_tokens: int = 0
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    audio: torch.Tensor = field(default_factory=lambda: torch.empty(0))
    finish_reason: FinishReason | None = None

    def add(self, step: StageStep) -> None:
        """Adds the output of one step."""
        self.text += step.text
        self.token_ids += step.token_ids
        self.prompt_token_ids = self.prompt_token_ids or step.prompt_token_ids
        self.cached_tokens += step.cached_tokens
        for name, rows in receive(step).items():
            known = self.tensors.get(name)
            self.tensors[name] = rows if known is None else torch.cat([known, rows])
        if step.audio is not None:
            self.audio = torch.cat([self.audio, torch.as_tensor(step.audio)])
        self.finish_reason = step.finish_reason or self.finish_reason

    @property
    def computed_tokens(self) -> int:
        """Tokens of the prompt that the stage computed."""
        return len(self.prompt_token_ids or ()) - self.cached_tokens


@dataclass
class OmniStages:
    """Started engines by stage name."""

    engines: dict[str, StageEngine]

    async def run_chain(self, prompt: ReferencePrompt, settings: ReferenceSettings) -> dict[str, Collected]:
        """Runs a prompt through Qwen2.5-Omni's stages with greedy sampling, like the reference. Returns each output."""
        voice = settings.voice
        greedy: dict[str, Any] = {"temperature": 0.0, "repetition_penalty": 1.0}
        thinker = await self.ask("thinker", prompt.to_user_prompt(), **greedy, max_tokens=settings.thinker_tokens)
        greedy["repetition_penalty"] = settings.repetition_penalty
        talker = await self.ask("talker", thinker.tensors, voice, **greedy, max_tokens=settings.talker_tokens)
        token2wav = await self.ask(
            "token2wav",
            talker.tensors,
            voice,
            seed=settings.seed,
            num_inference_steps=settings.steps,
            guidance_scale=settings.guidance,
        )
        return {"thinker": thinker, "talker": talker, "token2wav": token2wav}

    async def ask(
        self,
        stage: str,
        source: UserPrompt | EdgeInput | Mapping[str, torch.Tensor],
        voice: str = "",
        want_tensors: bool = True,
        **sampling: Any,
    ) -> Collected:
        """Runs one request on one stage. Returns its output. Default for sampling: the component's."""
        engine = self.engines[stage]
        resolved = resolve_sampling(
            SamplingDefaults(**sampling),
            seed=None,
            config_default=SamplingDefaults(),
            component_default=engine.component.default_sampling,
        )
        request = StageRequest(
            request_id=f"test-{next(_ids)}",
            source=source if isinstance(source, (UserPrompt, EdgeInput)) else EdgeInput(source),
            sampling=resolved,
            voice=voice,
            want_tensors=want_tensors,
        )
        collected = Collected()
        async for step in engine.generate(request):
            collected.add(step)
        return collected


@asynccontextmanager
async def run_omni_stages(
    checkpoint: Path,
    *stages: str,
    in_process: bool = True,
    max_media: int = 4,
    family: str = "qwen2_5_omni",
    **engine_args: Any,
) -> AsyncIterator[OmniStages]:
    """Starts the named stages (default: all three) and shuts them down after the block."""
    async with AsyncExitStack() as stack:
        engines: dict[str, StageEngine] = {}
        for stage in stages or ("thinker", "talker", AUDIO_STAGES[family]):
            # The last stage has no tokens to batch, so these arguments are not for it.
            arguments = {} if stage == AUDIO_STAGES[family] else engine_args
            config = stage_config(stage, checkpoint, max_media, family=family, **arguments)
            engine = build_stage_engine(config, in_process=in_process)
            stack.push_async_callback(engine.shutdown)
            await engine.start()
            engines[stage] = engine
        yield OmniStages(engines)


ROWS_TOLERANCE = 1e-4
AUDIO_TOLERANCE = 1e-5


def check_parity(ours: Mapping[str, Collected], reference: Reference) -> None:
    """Compares every stage's output with the reference: tokens exactly, rows and audio within the tolerances.

    Also fails if the reference audio is nearly silent.
    """
    thinker, talker, token2wav = ours["thinker"], ours["talker"], ours["token2wav"]
    assert thinker.prompt_token_ids == reference.prompt_token_ids
    assert thinker.token_ids == reference.thinker_token_ids
    assert thinker.text == reference.text
    assert thinker.tensors["token_ids"].tolist() == [*reference.prompt_token_ids, *reference.thinker_token_ids[:-1]]
    assert thinker.tensors["mrope_positions"].tolist() == reference.mrope_positions.tolist()
    torch.testing.assert_close(thinker.tensors["x"], reference.rows, atol=ROWS_TOLERANCE, rtol=0)
    assert talker.token_ids == reference.codec_token_ids
    assert talker.tensors["codes"].tolist() == reference.codes
    assert token2wav.audio.shape == reference.waveform.shape
    torch.testing.assert_close(token2wav.audio, reference.waveform, atol=AUDIO_TOLERANCE, rtol=0)
    assert reference.waveform.abs().max() > 0.05, (
        "the reference audio is nearly silent, so the comparison proves nothing"
    )


class StartedEngine:
    """An engine that has been started already. A server's calls of `start` and `shutdown` do nothing."""

    def __init__(self, engine: StageEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self) -> None:
        return

    async def shutdown(self) -> None:
        return
