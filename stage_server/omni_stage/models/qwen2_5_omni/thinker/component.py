"""Component qwen2_5_omni/thinker: reads text, audio, images and video; writes text; publishes rows for the talker.

vLLM itself supports the thinker of a Qwen2.5-Omni checkpoint. Our runner also captures a row for every position: the
last hidden state plus the input embedding. At a medium's placeholder, the row is only the hidden state.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import ConfigurationError, ModelExecutionError
from omni_stage.exchange import Array
from omni_stage.models.component import Emitter, EngineInput, EngineStep, StageRequest, StageStep
from omni_stage.models.qwen2_5_omni.checkpoint import OmniCheckpoint, read_checkpoint, read_voices
from omni_stage.models.qwen2_5_omni.manifest import THINKER
from omni_stage.models.qwen2_5_omni.model_configs import name_thinker
from omni_stage.models.qwen2_5_omni.schemas import find_pace, thinker2talker_schema
from omni_stage.models.shared.config_file import read_if_there, torch_dtype
from omni_stage.models.shared.media_cost import MediaCosts, load_extractor
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ, PromptBuilder
from omni_stage.models.shared.thinker import MAX_TOKENS, OmniThinker, SpokenTokens, ThinkerSettings

SPEECH_SYSTEM_PROMPT = (
    "You are Qwen, a virtual human developed by the Qwen Team, Alibaba Group, capable of perceiving auditory and "
    "visual inputs, as well as generating text and speech."
)
"""The exact system message that the model needs in order to speak well.

Source: the model card of Qwen/Qwen2.5-Omni-7B, "Prompt for audio output". Qwen2_5OmniProcessor.apply_chat_template
of transformers 4.52.4 warns if the message differs.
"""


def read_audio_limit(path: Path) -> int:
    """Returns the maximum number of samples, at 16 kHz, that the feature extractor reads from an audio clip.

    It cuts off the rest. The limit is `chunk_length` of preprocessor_config.json: 300 seconds in the published
    checkpoints. Raises ConfigurationError.
    """
    return int(load_extractor(path).chunk_length) * AUDIO_RATE_HZ


_FRAMES_PER_TOKEN: Final = 4
"""Frames of the audio encoder's input per token, whatever config.json says."""
_PROMPT_TENSORS = frozenset({"mrope_positions", "mrope_delta"})
"""Tensors that arrive only with a request's first rows."""
_NO_ROWS = torch.empty(0)


class Thinker(OmniThinker):
    """The thinker of one checkpoint; see the module's docstring."""

    facts = THINKER

    def __init__(self, checkpoint: OmniCheckpoint, prompts: PromptBuilder, settings: ThinkerSettings) -> None:
        super().__init__(
            prompts,
            settings,
            output_schema=thinker2talker_schema(checkpoint),
            engine=(str(checkpoint.path), checkpoint.dtype, name_thinker),
            warmup_token_ids=[0] * 4,
        )
        self._dtype = torch_dtype(checkpoint.dtype)
        # Each codec token needs one row of the reply, and the first step has only the prompt's rows.
        self.first_audio_steps = int(settings.pace["first_tokens"])

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter that pairs rows with token ids."""
        spoken = self.spoken_tokens(request)
        return ThinkerEmitter(want_tensors=request.want_tensors, dtype=self._dtype, spoken=spoken)


class ThinkerEmitter:
    """Pairs each captured row with the token at its position. Holds one request's tokens and row count."""

    def __init__(self, *, want_tensors: bool, dtype: torch.dtype, spoken: SpokenTokens) -> None:
        """`dtype`: dtype of the published rows, as in the schema; `spoken`: how much of the reply is published."""
        self._want_tensors = want_tensors
        self._dtype = dtype
        self._spoken = spoken
        self._token_ids: list[int] = []
        self._prompt_length = 0
        self._rows = 0
        self._waiting = _NO_ROWS
        """Rows that are not published yet."""

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step. Raises ModelExecutionError if rows and tokens do not match."""
        self._token_ids.extend(step.prompt_token_ids or ())
        self._prompt_length += len(step.prompt_token_ids or ())
        self._token_ids.extend(step.token_ids)
        made = StageStep.of(step)
        if self._want_tensors:
            made.tensors = self._tensors(step)
        if self._rows:
            made.complete_tensors = _PROMPT_TENSORS
        return made

    def _tensors(self, step: EngineStep) -> dict[str, Array]:
        # Runs once per token and request. A small call into torch takes several microseconds, so make only those that
        # are needed, and use numpy for the ids.
        tensors: dict[str, Array] = {}
        rows = step.tensors.get("rows")
        if rows is None:
            rows = self._waiting
        elif self._waiting.shape[0]:
            rows = torch.cat([self._waiting, rows])
        given = rows.shape[0]
        if self._rows + given > len(self._token_ids):
            raise ModelExecutionError("the engine gave more rows than the request has tokens")
        count = min(given, self._prompt_length + self._spoken.count(step) - self._rows)
        if count < given:
            rows, self._waiting = rows[:count], rows[count:]
        else:
            self._waiting = _NO_ROWS
        if count:
            until = self._rows + count
            tensors["x"] = (rows if rows.dtype is self._dtype else rows.to(self._dtype)).contiguous()
            tensors["token_ids"] = np.array(self._token_ids[self._rows : until], dtype=np.int64)
            self._rows = until
        for name in _PROMPT_TENSORS:
            if name in step.tensors:
                tensors[name] = step.tensors[name].to(torch.int64).contiguous()
        return tensors


def build_component(config: StageConfig) -> Thinker:
    """Build the thinker of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    max_samples = read_audio_limit(checkpoint.path)
    prompts = PromptBuilder.load(checkpoint, max_audio_samples=max_samples, speech_system_prompt=SPEECH_SYSTEM_PROMPT)
    settings = ThinkerSettings(
        feeds=bool(config.downstream),
        max_media=config.limits.max_media_per_request,
        default_sampling=read_text_sampling(checkpoint.path),
        end_token_ids=read_text_ends(
            checkpoint.path, vocab_size=checkpoint.vocab_size, tokenizer_end=prompts.end_token_id
        ),
        media_costs=MediaCosts.load(
            checkpoint.path,
            max_samples=max_samples,
            samples_per_token=_FRAMES_PER_TOKEN * int(load_extractor(checkpoint.path).hop_length),
            pads_to_limit=True,
        ),
        pace=find_pace(checkpoint, config, held=1),
        # A talker with a checkpoint of its own may have other voices; it checks them itself.
        known_voices=tuple(read_voices(config.model.path)) if config.downstream and config.is_model_shared else (),
    )
    return Thinker(checkpoint, prompts, settings)


def read_text_sampling(path: Path) -> SamplingDefaults:
    """Returns the thinker's default sampling: temperature 0, unless generation_config.json says `do_sample: true`.

    In that case the sampling values in that file apply, which vLLM reads by itself. Raises ConfigurationError.

    The generation_config.json of the published checkpoints names neither sampling values nor an end-of-text token. In
    this case transformers' Qwen2_5OmniForConditionalGeneration.generate (as of 4.52.4 and 5.19) decodes greedily,
    because `do_sample` is false by default. It generates at most 1,024 tokens and stops at
    `thinker_config.eos_token_id`, because it derives the thinker's generation settings only from that part of
    config.json.
    """
    if read_if_there(path / "generation_config.json").get("do_sample") is True:
        return SamplingDefaults(max_tokens=MAX_TOKENS)
    return SamplingDefaults(temperature=0.0, max_tokens=MAX_TOKENS)


def read_text_ends(path: Path, *, vocab_size: int, tokenizer_end: int | None) -> tuple[int, ...]:
    """Returns the token ids that end the thinker's text, ascending: 151645 in the published checkpoints.

    They are read from `thinker_config`, else from its text_config, else from generation_config.json. vLLM adds the ids
    of generation_config.json and of the tokenizer. An id of 0 does not mean "none": 0 is a token, "!" in the published
    vocabulary. Raises ConfigurationError if neither these files nor the tokenizer name an end, because every reply
    would then run to max_tokens.
    """
    thinker = read_if_there(path / "config.json").get("thinker_config") or {}
    settings = read_if_there(path / "generation_config.json")
    for source, part in (("thinker_config", thinker), ("thinker_config.text_config", thinker.get("text_config") or {})):
        ends = _read_ids(part, f"{path / 'config.json'}: {source}", vocab_size)
        if ends:
            return ends
    ends = _read_ids(settings, str(path / "generation_config.json"), vocab_size)
    if not ends and tokenizer_end is None:
        raise ConfigurationError(
            f"neither config.json, generation_config.json nor the tokenizer in model.path {path} names a token that "
            "ends the text; set thinker_config.eos_token_id",
            field="model.path",
        )
    return ends


def _read_ids(part: dict[str, Any], source: str, vocab_size: int) -> tuple[int, ...]:
    value = part.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise ConfigurationError(
                f"{source}.eos_token_id: {token_id!r} is not in the vocabulary, whose ids are 0 to {vocab_size - 1}",
                field="model.path",
                limit=vocab_size,
            )
    return tuple(sorted(set(ids)))
