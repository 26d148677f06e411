"""Component qwen2_5_omni/thinker: reads text, sound and images, writes text, publishes its rows for the talker.

vLLM serves the thinker of a Qwen2.5-Omni checkpoint by itself; the runner captures, for every position, the last
hidden state plus the input embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.component import (
    Emitter,
    EngineStep,
    MediaCost,
    StageInput,
    StageRequest,
    StageStep,
    UserPrompt,
)
from omni_stage.models.qwen2_5_omni.checkpoint import OmniCheckpoint, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.manifest import THINKER
from omni_stage.models.qwen2_5_omni.model_configs import name_thinker
from omni_stage.models.qwen2_5_omni.schemas import thinker2talker_schema
from omni_stage.models.qwen2_5_omni.thinker.prompts import SPEECH_SYSTEM_PROMPT, read_audio_limit
from omni_stage.models.qwen2_5_omni.thinker.text_defaults import read_text_ends, read_text_sampling
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import MAX_ASPECT_RATIO, SOUND_RATE_HZ, PromptBuilder
from omni_stage.models.shared.voices import pick_voice

PATCH: Final = 28
"""Sides of the square of an image that becomes one token."""
SAMPLES_PER_TOKEN: Final = 640
_WARMUP_TOKENS = 4
_PROMPT_TENSORS = frozenset({"mrope_positions", "mrope_delta"})
"""Come with a request's first rows and never again."""
_TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Thinker:
    """The thinker of one checkpoint; see the module's docstring."""

    facts = THINKER
    input_schema = None
    voices: Sequence[str] = ()
    audio_rate_hz = SOUND_RATE_HZ
    max_aspect_ratio = MAX_ASPECT_RATIO

    def __init__(
        self,
        checkpoint: OmniCheckpoint,
        prompts: PromptBuilder,
        *,
        feeds: bool,
        max_media: int,
        default_sampling: SamplingDefaults,
        end_token_ids: Sequence[int],
        media_costs: MediaCosts,
        known_voices: Sequence[str] = (),
    ) -> None:
        """`feeds`: whether a stage reads this one; `max_media`: most images, and most sounds, of a request.

        `default_sampling`, `end_token_ids`: the checkpoint's own; see text_defaults.
        `known_voices`: those of the stages below, so that an unknown one is refused before anything is written.
        """
        self.default_sampling = default_sampling
        self._end_token_ids = tuple(end_token_ids)
        self._media_costs = media_costs
        self.known_voices = known_voices
        self._checkpoint = checkpoint
        self._prompts = prompts
        self._feeds = feeds
        self._max_media = max_media
        self.output_schema = thinker2talker_schema(checkpoint)

    def engine_kwargs(self) -> dict[str, Any]:
        """vLLM's own model class, checked as it loads; rows are captured where a stage reads them."""
        return {
            "model": str(self._checkpoint.path),
            "dtype": self._checkpoint.dtype,
            "hf_overrides": name_thinker,
            "limit_mm_per_prompt": {"image": self._max_media, "audio": self._max_media, "video": 0},
            "additional_config": {"omni": {"capture_rows": True, "capture_mrope": True}} if self._feeds else {},
        }

    def prepare(self, request: StageRequest) -> StageInput:
        """Apply the chat template, tokenize, decode media to what the processor takes; embeddings pass as they are.

        A chat whose reply a stage below speaks gets the system message that speech needs; see PromptBuilder.build.
        """
        if not isinstance(request.source, UserPrompt):
            raise InvalidRequestError(f"component {THINKER.id} reads a prompt, not tensors of another stage")
        if self.known_voices:
            pick_voice(request.voice, self.known_voices)
        ends = () if request.sampling.ignore_eos else self._end_token_ids
        if request.source.prompt_embeds is not None:
            return StageInput(prompt={}, prompt_embeds=request.source.prompt_embeds, stop_token_ids=ends)
        reply = request.source.reply
        tokens = None if reply is None else self._prompts.encode_reply(reply, self._end_token_ids)
        prompt = self._prompts.build(request.source, speaks=request.want_tensors, reply=tokens)
        return StageInput(prompt=prompt, stop_token_ids=ends, reply=tokens)

    def image_cost(self, width: int, height: int) -> MediaCost:
        """See TakesMedia."""
        return self._media_costs.image(width, height)

    def audio_cost(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        return self._media_costs.sound(samples)

    def emitter(self, request: StageRequest, prepared: StageInput) -> Emitter:
        """An emitter that pairs rows with token ids."""
        return ThinkerEmitter(want_tensors=request.want_tensors, dtype=_TORCH_DTYPES[self._checkpoint.dtype])

    def warmup_request(self) -> StageRequest:
        """A few tokens, with their rows where a stage reads them."""
        return StageRequest(
            request_id="warmup",
            source=UserPrompt(token_ids=[0] * _WARMUP_TOKENS),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=_WARMUP_TOKENS, ignore_eos=True),
            want_tensors=self._feeds,
        )


class ThinkerEmitter:
    """Gives each captured row the token of its position. One request's state: the tokens and how many rows came."""

    def __init__(self, *, want_tensors: bool, dtype: torch.dtype) -> None:
        """`dtype`: of the rows, as the schema says."""
        self._want_tensors = want_tensors
        self._dtype = dtype
        self._token_ids: list[int] = []
        self._rows = 0

    def emit(self, step: EngineStep) -> StageStep:
        """One engine step is one stage step. Raises ModelExecutionError if rows and tokens do not match."""
        self._token_ids.extend(step.prompt_token_ids or ())
        self._token_ids.extend(step.token_ids)
        return StageStep(
            text=step.text,
            token_ids=step.token_ids,
            prompt_token_ids=step.prompt_token_ids,
            tensors=self._tensors(step) if self._want_tensors else {},
            complete_tensors=_PROMPT_TENSORS if self._rows else frozenset(),
            finish_reason=step.finish_reason,
            stop_reason=step.stop_reason,
            scheduled_ns=step.scheduled_ns,
        )

    def _tensors(self, step: EngineStep) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        rows = step.tensors.get("rows")
        if rows is not None and rows.shape[0]:
            until = self._rows + rows.shape[0]
            if until > len(self._token_ids):
                raise ModelExecutionError("the engine gave more rows than the request has tokens")
            tensors["x"] = rows.to(self._dtype).contiguous()
            tensors["token_ids"] = torch.tensor(self._token_ids[self._rows : until], dtype=torch.int64)
            self._rows = until
        for name in _PROMPT_TENSORS:
            if name in step.tensors:
                tensors[name] = step.tensors[name].to(torch.int64).contiguous()
        return tensors


def build_component(config: StageConfig) -> Thinker:
    """The thinker of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    max_samples = read_audio_limit(checkpoint.path)
    prompts = PromptBuilder.load(checkpoint, max_audio_samples=max_samples, speech_system_prompt=SPEECH_SYSTEM_PROMPT)
    return Thinker(
        checkpoint,
        prompts,
        feeds=bool(config.downstream),
        max_media=config.limits.max_media_per_request,
        default_sampling=read_text_sampling(checkpoint.path),
        end_token_ids=read_text_ends(
            checkpoint.path, vocab_size=checkpoint.vocab_size, tokenizer_end=prompts.end_token_id
        ),
        media_costs=MediaCosts.load(
            checkpoint.path, max_samples=max_samples, patch=PATCH, samples_per_token=SAMPLES_PER_TOKEN
        ),
        known_voices=tuple(read_voices(config.model.path)) if config.downstream else (),
    )
