"""Component qwen3_omni/thinker: reads text, audio, images and video; writes text; publishes tensors for the talker.

It publishes text as token ids, whose embeddings the talker's stage server reads from the checkpoint. For media it
publishes the hidden states of one layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.errors import ConfigurationError, InvalidRequestError, ModelExecutionError
from omni_stage.exchange import Array
from omni_stage.models.component import Emitter, EngineInput, EngineStep, StageRequest, StageStep
from omni_stage.models.qwen3_omni.checkpoint import (
    OmniCheckpoint,
    find_media,
    find_reply,
    find_user_tokens,
    read_checkpoint,
)
from omni_stage.models.qwen3_omni.manifest import THINKER
from omni_stage.models.qwen3_omni.model_configs import name_thinker
from omni_stage.models.qwen3_omni.schemas import find_pace, thinker2talker_schema
from omni_stage.models.shared.config_file import read_if_there, torch_dtype
from omni_stage.models.shared.media_cost import MediaCosts, load_extractor
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ, PromptBuilder
from omni_stage.models.shared.thinker import MAX_TOKENS, OmniThinker, SpokenTokens, ThinkerSettings

_SERVED_FRAMES: Final = 100
"""Frames of an encoder's window whose tokens vLLM 0.32 and transformers 5.19 count right: both take 13 tokens for every
full window."""
MAX_SAMPLES: Final = 300 * AUDIO_RATE_HZ
"""Samples of the longest audio. The published preprocessor_config.json names 300 s (`n_samples`). The file is not read,
because its value is unreliable: a checkpoint that transformers has saved again names 30 s, although transformers does
not cut the audio at that length."""
DEFAULT_SAMPLING: Final = SamplingDefaults(temperature=0.0, max_tokens=MAX_TOKENS)
"""Greedy, as in transformers' generate(). For a checkpoint whose generation_config.json does not make the thinker
sample."""
_SAMPLING_NAMES: Final = frozenset({"temperature", "top_p", "top_k", "do_sample"})
_FIRST_TENSORS: Final = frozenset({"prompt_tokens", "media", "media_positions"})
"""Tensors that have rows only in a request's first step, if at all."""


class Thinker(OmniThinker):
    """The thinker of one checkpoint; see the module's docstring."""

    facts = THINKER

    def __init__(self, checkpoint: OmniCheckpoint, prompts: PromptBuilder, settings: ThinkerSettings) -> None:
        text = checkpoint.text
        super().__init__(
            prompts,
            settings,
            output_schema=thinker2talker_schema(checkpoint),
            engine=(str(checkpoint.path), checkpoint.dtype, name_thinker),
            # One user message and one assistant message.
            warmup_token_ids=[text.message_start, text.user, 0, text.message_start, text.assistant, 0],
        )
        self._checkpoint = checkpoint

    def check_spoken_ids(self, token_ids: Sequence[int]) -> None:
        """Refuse ids without an assistant message: the talker would have no text. Raises InvalidRequestError."""
        if find_reply(torch.tensor(token_ids), self._checkpoint.text) is None:
            raise InvalidRequestError(
                "start.token_ids: a reply that is to be spoken needs an assistant's turn in the prompt "
                "(<|im_start|>assistant); send a chat, or ask for text alone",
                field="start.token_ids",
            )

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns an emitter of token ids, and of rows for the prompt's media."""
        return ThinkerEmitter(
            self._checkpoint,
            want_tensors=request.want_tensors,
            spoken=self.spoken_tokens(request),
            is_given=prepared.reply is not None,
        )


class ThinkerEmitter:
    """Publishes the ids of all tokens except a sampled reply's last one, and the rows of media in users' messages.

    The last token either ends the text or is the one at which the length limit was reached. transformers' talker does
    not read it either. It arrives together with the reason why the reply ended, so all others are sent at once.
    """

    def __init__(
        self, checkpoint: OmniCheckpoint, *, want_tensors: bool, spoken: SpokenTokens, is_given: bool = False
    ) -> None:
        """`spoken`: how much of the reply is published. `is_given`: whether the client gave the reply. Such a reply has
        no end token, so its last token is spoken too."""
        self._checkpoint = checkpoint
        self._want_tensors = want_tensors
        self._spoken = spoken
        self._is_given = is_given
        self._held: list[int] = []
        """The newest tokens, if they may be a stop string."""
        self._published = 0
        """Number of the reply's tokens that are published."""
        self._is_first = True

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one engine step to one stage step. Raises ModelExecutionError if rows and tokens do not match."""
        tensors: dict[str, Array] = {}
        complete: frozenset[str] = frozenset()
        if self._want_tensors:
            ids = [*self._held, *step.token_ids]
            last = 0 if self._is_given or step.finish_reason is None else 1
            known = ids[: max(0, min(len(ids) - last, self._spoken.count(step) - self._published))]
            self._held = ids[len(known) :]
            self._published += len(known)
            if self._is_first and step.prompt_token_ids is not None:
                prompt = torch.tensor(step.prompt_token_ids, dtype=torch.int64)
                tensors |= self._first_tensors(prompt, step)
                known = [*step.prompt_token_ids, *known]
                self._is_first = False
            if known:
                tensors["token_ids"] = np.array(known, dtype=np.int64)
            complete = frozenset() if self._is_first else _FIRST_TENSORS
        made = StageStep.of(step)
        made.tensors, made.complete_tensors = tensors, complete
        return made

    def _first_tensors(self, prompt: torch.Tensor, step: EngineStep) -> dict[str, torch.Tensor]:
        tensors = {"prompt_tokens": torch.tensor([prompt.shape[0]])}
        media = find_media(prompt, self._checkpoint.placeholder_ids)
        count = int(media.sum())
        rows, positions = step.tensors.get("media"), step.tensors.get("mrope_positions")
        given = 0 if rows is None else rows.shape[0]
        if given != count:
            raise ModelExecutionError(f"the engine gave {given} rows of media, but the prompt has {count}")
        if rows is None or positions is None or not count:
            return tensors
        heard = find_user_tokens(prompt, self._checkpoint.text)[media]
        if heard.any():
            chosen = rows if heard.all() else rows[heard]
            tensors["media"] = chosen.to(torch_dtype(self._checkpoint.dtype)).contiguous()
            tensors["media_positions"] = positions[: prompt.shape[0]][media][heard].to(torch.int64).contiguous()
        return tensors


def read_text_sampling(path: Path) -> SamplingDefaults:
    """Returns DEFAULT_SAMPLING, unless generation_config.json has sampling values for the thinker.

    In that case the values in the file apply, which vLLM reads by itself, except if the file says `do_sample: false`.
    The published file of Instruct has only values for the talker, under other names. The file of Thinking has values
    for the thinker. Raises ConfigurationError.
    """
    values = read_if_there(path / "generation_config.json")
    if values.get("do_sample") is False or not _SAMPLING_NAMES & values.keys():
        return DEFAULT_SAMPLING
    return SamplingDefaults(max_tokens=None if "max_new_tokens" in values else MAX_TOKENS)


def samples_per_token(frames: int, hop: int) -> int:
    """Returns the maximum number of audio samples that become one token.

    `frames`: frames in a window of the encoder, which three convolutions of stride 2 turn into tokens: 100 into 13.
    `hop`: samples of a frame.
    """
    tokens = frames
    for _ in range(3):
        tokens = -(-tokens // 2)
    return -(-frames * hop // tokens)


def build_component(config: StageConfig) -> Thinker:
    """Build the thinker of config.model.path. Raises ConfigurationError."""
    checkpoint = read_checkpoint(config.model.path)
    if config.downstream and checkpoint.speech is None:
        raise ConfigurationError(
            f"the checkpoint at model.path {checkpoint.path} only writes text (enable_audio_output is false), so no "
            "stage can read its thinker; leave the other stages out",
            field="downstream",
        )
    if checkpoint.audio_frames != _SERVED_FRAMES:
        raise ConfigurationError(
            f"{checkpoint.path / 'config.json'}: audio_config.n_window is {checkpoint.audio_frames // 2}; only "
            f"{_SERVED_FRAMES // 2} is served",
            field="model.path",
            limit=_SERVED_FRAMES // 2,
        )
    extractor = load_extractor(checkpoint.path)
    # A talker with a checkpoint of its own may have other voices; it checks them itself.
    knows_voices = bool(config.downstream) and config.is_model_shared
    prompts = PromptBuilder.load(checkpoint, max_audio_samples=MAX_SAMPLES, speech_needs_chat=True)
    settings = ThinkerSettings(
        feeds=bool(config.downstream),
        max_media=config.limits.max_media_per_request,
        default_sampling=read_text_sampling(checkpoint.path),
        end_token_ids=(checkpoint.text.message_end,),
        media_costs=MediaCosts.load(
            checkpoint.path,
            max_samples=MAX_SAMPLES,
            samples_per_token=samples_per_token(checkpoint.audio_frames, int(extractor.hop_length)),
            pads_to_limit=False,
        ),
        pace=find_pace(checkpoint.speech, config),
        known_voices=checkpoint.speech.voices if checkpoint.speech and knows_voices else (),
    )
    return Thinker(checkpoint, prompts, settings)
