"""Component qwen3_omni/thinker: reads text, sound and images, writes text, publishes what the talker needs of both.

Text travels as token ids, whose embeddings the talker's server has; of media the hidden states of one layer travel.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import ConfigurationError, InvalidRequestError, ModelExecutionError
from omni_stage.models.component import (
    Emitter,
    EngineStep,
    MediaCost,
    StageInput,
    StageRequest,
    StageStep,
    UserPrompt,
)
from omni_stage.models.qwen3_omni.checkpoint import OmniCheckpoint, read_checkpoint
from omni_stage.models.qwen3_omni.manifest import THINKER
from omni_stage.models.qwen3_omni.model_configs import name_thinker
from omni_stage.models.qwen3_omni.schemas import thinker2talker_schema
from omni_stage.models.qwen3_omni.turns import find_media, find_reply, find_user_tokens
from omni_stage.models.shared.media_cost import MediaCosts
from omni_stage.models.shared.prompts import MAX_ASPECT_RATIO, SOUND_RATE_HZ, PromptBuilder
from omni_stage.models.shared.voices import pick_voice

PATCH: Final = 32
"""Sides of the square of an image that becomes one token."""
SAMPLES_PER_TOKEN: Final = 1231
"""Of a sound: 100 frames of 10 ms become 13 tokens."""
MAX_TOKENS: Final = 1024
"""thinker_max_new_tokens of transformers' generate()."""
_WARMUP_TOKENS = 4
_FIRST_TENSORS: Final = frozenset({"prompt_tokens", "media", "media_positions"})
"""Come with a request's first step, where there are any, and never again."""
_TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class Thinker:
    """The thinker of one checkpoint; see the module's docstring."""

    facts = THINKER
    input_schema = None
    voices: Sequence[str] = ()
    audio_rate_hz = SOUND_RATE_HZ
    max_aspect_ratio = MAX_ASPECT_RATIO
    # As transformers' generate(): greedy, for no published file has values for the thinker.
    default_sampling = SamplingDefaults(temperature=0.0, max_tokens=MAX_TOKENS)

    def __init__(
        self,
        checkpoint: OmniCheckpoint,
        prompts: PromptBuilder,
        *,
        feeds: bool,
        max_media: int,
        media_costs: MediaCosts,
        known_voices: Sequence[str] = (),
    ) -> None:
        """`feeds`: whether a stage reads this one; `max_media`: most images, and most sounds, of a request.

        `known_voices`: those of the stages below, so that an unknown one is refused before anything is written.
        """
        self._checkpoint = checkpoint
        self._prompts = prompts
        self._feeds = feeds
        self._max_media = max_media
        self._media_costs = media_costs
        self.known_voices = known_voices
        self.output_schema = thinker2talker_schema(checkpoint)

    def engine_kwargs(self) -> dict[str, Any]:
        """vLLM's own model class, checked as it loads; rows of media are captured where a stage reads them."""
        return {
            "model": str(self._checkpoint.path),
            "dtype": self._checkpoint.dtype,
            "hf_overrides": name_thinker,
            "limit_mm_per_prompt": {"image": self._max_media, "audio": self._max_media, "video": 0},
            "additional_config": {"omni": {"capture_rows": True, "capture_mrope": True}} if self._feeds else {},
        }

    def prepare(self, request: StageRequest) -> StageInput:
        """Apply the chat template, tokenize, decode media to what the processor takes; embeddings pass as they are.

        A text whose reply is to be spoken is put as a user's message. Raises InvalidRequestError for token ids whose
        reply is to be spoken and that have no assistant's turn: the talker would find nothing to say.
        """
        if not isinstance(request.source, UserPrompt):
            raise InvalidRequestError(f"component {THINKER.id} reads a prompt, not tensors of another stage")
        if self.known_voices:
            pick_voice(request.voice, self.known_voices)
        ends = () if request.sampling.ignore_eos else (self._checkpoint.text.message_end,)
        if request.source.prompt_embeds is not None:
            return StageInput(prompt={}, prompt_embeds=request.source.prompt_embeds, stop_token_ids=ends)
        reply = request.source.reply
        tokens = None if reply is None else self._prompts.encode_reply(reply, (self._checkpoint.text.message_end,))
        prompt = self._prompts.build(request.source, speaks=request.want_tensors, reply=tokens)
        if request.want_tensors and request.source.token_ids is not None:
            ids = torch.tensor(prompt["prompt_token_ids"])
            if find_reply(ids, self._checkpoint.text) is None:
                raise InvalidRequestError(
                    "start.token_ids: a reply that is to be spoken needs an assistant's turn in the prompt "
                    "(<|im_start|>assistant); send a chat, or ask for text alone",
                    field="start.token_ids",
                )
        return StageInput(prompt=prompt, stop_token_ids=ends, reply=tokens)

    def image_cost(self, width: int, height: int) -> MediaCost:
        """See TakesMedia."""
        return self._media_costs.image(width, height)

    def audio_cost(self, samples: int) -> MediaCost:
        """See TakesMedia."""
        return self._media_costs.sound(samples)

    def emitter(self, request: StageRequest, prepared: StageInput) -> Emitter:
        """An emitter of ids, and of rows where the prompt has media."""
        return ThinkerEmitter(self._checkpoint, want_tensors=request.want_tensors)

    def warmup_request(self) -> StageRequest:
        """A few tokens behind a user's and an assistant's turn."""
        text = self._checkpoint.text
        turns = [text.message_start, text.user, 0, text.message_start, text.assistant, 0]
        return StageRequest(
            request_id="warmup",
            source=UserPrompt(token_ids=turns),
            sampling=SamplingDefaults(temperature=0.0, max_tokens=_WARMUP_TOKENS, ignore_eos=True),
            want_tensors=self._feeds,
        )


class ThinkerEmitter:
    """Publishes the ids of every token but the reply's last, and the rows of media in users' messages.

    The last token ends the text or is what no more fitted behind; transformers' talker does not read it either.
    """

    def __init__(self, checkpoint: OmniCheckpoint, *, want_tensors: bool) -> None:
        self._checkpoint = checkpoint
        self._want_tensors = want_tensors
        self._held: list[int] = []
        """The newest token, which may be the last."""
        self._is_first = True

    def emit(self, step: EngineStep) -> StageStep:
        """One engine step is one stage step. Raises ModelExecutionError if rows and tokens do not match."""
        tensors: dict[str, torch.Tensor] = {}
        complete: frozenset[str] = frozenset()
        if self._want_tensors:
            ids = [*self._held, *step.token_ids]
            self._held = ids[-1:]
            known = ids[:-1]
            if self._is_first and step.prompt_token_ids is not None:
                prompt = torch.tensor(step.prompt_token_ids, dtype=torch.int64)
                tensors |= self._first_tensors(prompt, step)
                known = [*step.prompt_token_ids, *known]
                self._is_first = False
            if known:
                tensors["token_ids"] = torch.tensor(known, dtype=torch.int64)
            complete = frozenset() if self._is_first else _FIRST_TENSORS
        return StageStep(
            text=step.text,
            token_ids=step.token_ids,
            prompt_token_ids=step.prompt_token_ids,
            tensors=tensors,
            complete_tensors=complete,
            finish_reason=step.finish_reason,
            stop_reason=step.stop_reason,
            scheduled_ns=step.scheduled_ns,
        )

    def _first_tensors(self, prompt: torch.Tensor, step: EngineStep) -> dict[str, torch.Tensor]:
        tensors = {"prompt_tokens": torch.tensor([prompt.shape[0]])}
        media = find_media(prompt, self._checkpoint.placeholder_ids)
        count = int(media.sum())
        rows, positions = step.tensors.get("media"), step.tensors.get("mrope_positions")
        given = 0 if rows is None else rows.shape[0]
        if given != count:
            raise ModelExecutionError(f"the engine gave {given} rows of media where the prompt has {count}")
        if rows is None or positions is None or not count:
            return tensors
        heard = find_user_tokens(prompt, self._checkpoint.text)[media]
        if heard.any():
            dtype = _TORCH_DTYPES[self._checkpoint.dtype]
            tensors["media"] = rows[heard].to(dtype).contiguous()
            tensors["media_positions"] = positions[: prompt.shape[0]][media][heard].to(torch.int64).contiguous()
        return tensors


def read_audio_limit(path: Path) -> int:
    """Returns the samples at 16 kHz of the longest sound: `n_samples` of preprocessor_config.json, 300 s as published.

    The file has no chunk_length, of which transformers would make 30 s; the processor does not cut at all. Raises
    ConfigurationError.
    """
    file = path / "preprocessor_config.json"
    try:
        samples = json.loads(file.read_text(encoding="utf-8"))["n_samples"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file} does not name n_samples ({type(error).__name__}); the checkpoint must hold its preprocessor's "
            "settings",
            field="model.path",
        ) from error
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise ConfigurationError(f"{file}: n_samples must be a positive integer", field="model.path")
    return samples


def build_component(config: StageConfig) -> Thinker:
    """The thinker of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    if config.downstream and checkpoint.speech is None:
        raise ConfigurationError(
            f"the checkpoint at model.path {checkpoint.path} only writes (enable_audio_output is false), so no stage "
            "can read its thinker; leave the other stages out",
            field="downstream",
        )
    max_samples = read_audio_limit(checkpoint.path)
    return Thinker(
        checkpoint,
        PromptBuilder.load(checkpoint, max_audio_samples=max_samples, speech_needs_chat=True),
        feeds=bool(config.downstream),
        max_media=config.limits.max_media_per_request,
        media_costs=MediaCosts.load(
            checkpoint.path, max_samples=max_samples, patch=PATCH, samples_per_token=SAMPLES_PER_TOKEN
        ),
        known_voices=checkpoint.speech.voices if config.downstream and checkpoint.speech else (),
    )
