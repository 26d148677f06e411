"""The facts of a Qwen3-Omni checkpoint that the components need: token ids, sizes, speakers. Reads only config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.config_file import find_dtype, parse_config, read_config

DEFAULT_VOICE: Final = "ethan"
_PARTS: Final = {
    "thinker_config": ("text_config", "audio_config", "vision_config"),
    "talker_config": ("text_config", "code_predictor_config"),
    "code2wav_config": (),
}
"""The mappings that config.json must hold; see parse_config."""
_SPEECH_PARTS: Final = ("talker_config", "code2wav_config")
"""Parts that a checkpoint without speech, such as Thinking, lacks."""
_SILENT_IDS: Final = 1024
"""How many ids at the end of the talker's vocabulary have no audio. transformers' generate() suppresses all of them but
the id that ends the stream."""


@dataclass(frozen=True, slots=True)
class TextTokens:
    """Token ids of the thinker's vocabulary."""

    message_start: int
    """<|im_start|>"""
    message_end: int
    """<|im_end|>: ends a message, and therefore the thinker's reply."""
    user: int
    assistant: int
    speech_start: int
    """tts_bos: precedes the text that the talker speaks."""
    speech_end: int
    """tts_eos: follows that text."""
    speech_padding: int
    """tts_pad"""


@dataclass(frozen=True, slots=True)
class CodecTokens:
    """Token ids of the talker's vocabulary."""

    padding: int
    start: int
    end: int
    no_think: int
    think_start: int
    think_end: int
    vocab_size: int
    speakers: Mapping[str, int]
    """Speakers' ids by name in lower case, the default first."""

    @property
    def special_ids(self) -> frozenset[int]:
        """All ids that config.json names."""
        named = (self.padding, self.start, self.end, self.no_think, self.think_start, self.think_end)
        return frozenset((*named, *self.speakers.values()))

    @property
    def never_sampled(self) -> range:
        """Ids without audio. They are never sampled, except for `end`, which is one of them."""
        return range(self.vocab_size - _SILENT_IDS, self.vocab_size)

    @property
    def placeholders(self) -> tuple[int, int]:
        """Two unused ids, which stand for "text here" and "a medium's hidden state here" in the talker's prompts.

        They are among the ids that are never sampled, so a repetition penalty on them affects no audio code.
        """
        free = (token for token in reversed(self.never_sampled) if token not in self.special_ids)
        return next(free), next(free)


@dataclass(frozen=True, slots=True)
class SpeechFacts:
    """The facts of a checkpoint's talker and code2wav."""

    codec: CodecTokens
    groups: int
    """Number of codes in a frame: one from the talker, the others from its code predictor."""
    codebook_size: int
    """Codes are at least 0 and below this."""
    accept_hidden_layer: int
    """The thinker's layer whose hidden states the talker reads for media. The embeddings count as layer 0."""
    talker_positions: int
    """Number of positions of the talker's rotary embedding."""
    frame_samples: int
    """Samples per frame: 1,920 in the published model, which are 80 ms."""
    lookahead_samples: int
    """How many samples are missing at the end of the audio, because only a further frame would complete them: 555 in
    the published model."""
    max_frames: int
    """Maximum number of frames in one reply's audio: the number of positions of code2wav's rotary embedding."""

    @property
    def voices(self) -> tuple[str, ...]:
        """Names of the speakers as the model card writes them, the default first."""
        return tuple(name.capitalize() for name in self.codec.speakers)


@dataclass(frozen=True, slots=True)
class OmniCheckpoint:
    """The facts of one checkpoint."""

    path: Path
    dtype: str
    """Dtype of the weights, and of the rows between thinker and talker: bfloat16, float16 or float32."""
    hidden_size: int
    """Hidden size of the thinker."""
    vocab_size: int
    """Vocabulary size of the thinker."""
    placeholder_ids: tuple[int, int, int]
    """Token ids that stand for audio, images and video in prompts."""
    audio_frames: int
    """Frames of audio, of 10 ms each, in one window of the audio encoder: 100 in the published models."""
    text: TextTokens
    speech: SpeechFacts | None
    """None for a checkpoint that only writes text."""


def read_checkpoint(path: str | Path) -> OmniCheckpoint:
    """Returns the facts of the checkpoint at `path`.

    Raises ConfigurationError if it is missing or is not a Qwen3-Omni checkpoint.
    """
    directory = Path(path)
    raw = read_config(directory)
    speaks = raw.get("enable_audio_output", True) is not False
    parts = {part: inner for part, inner in _PARTS.items() if speaks or part not in _SPEECH_PARTS}
    config = parse_config(directory, raw, Qwen3OmniMoeConfig, title="Qwen3-Omni", parts=parts)
    thinker = config.thinker_config
    return OmniCheckpoint(
        path=directory,
        dtype=find_dtype((raw, raw["thinker_config"], raw["thinker_config"]["text_config"])),
        hidden_size=thinker.text_config.hidden_size,
        vocab_size=thinker.text_config.vocab_size,
        placeholder_ids=(thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id),
        audio_frames=2 * thinker.audio_config.n_window,
        text=TextTokens(
            message_start=config.im_start_token_id,
            message_end=config.im_end_token_id,
            user=config.user_token_id,
            assistant=config.assistant_token_id,
            speech_start=config.tts_bos_token_id,
            speech_end=config.tts_eos_token_id,
            speech_padding=config.tts_pad_token_id,
        ),
        speech=_speech_facts(directory, config) if speaks else None,
    )


def read_speaking_checkpoint(path: str | Path) -> tuple[OmniCheckpoint, SpeechFacts]:
    """Returns the facts of a checkpoint with talker and code2wav. Raises ConfigurationError if it lacks them."""
    checkpoint = read_checkpoint(path)
    if checkpoint.speech is None:
        raise ConfigurationError(
            f"the checkpoint at model.path {checkpoint.path} only writes text (enable_audio_output is false): it has "
            "neither talker nor code2wav; use an Instruct checkpoint, or leave these stages out",
            field="model.path",
        )
    return checkpoint, checkpoint.speech


def _speech_facts(directory: Path, config: Qwen3OmniMoeConfig) -> SpeechFacts:
    file, talker, code2wav = directory / "config.json", config.talker_config, config.code2wav_config
    text = talker.text_config
    if talker.thinker_hidden_size != config.thinker_config.text_config.hidden_size:
        raise ConfigurationError(
            f"{file}: talker_config.thinker_hidden_size ({talker.thinker_hidden_size}) must equal the thinker's "
            f"hidden_size ({config.thinker_config.text_config.hidden_size})",
            field="model.path",
        )
    groups = {talker.num_code_groups, talker.code_predictor_config.num_code_groups, code2wav.num_quantizers}
    if len(groups) != 1:
        raise ConfigurationError(
            f"{file}: num_code_groups of talker_config and code_predictor_config and num_quantizers of "
            "code2wav_config must be equal",
            field="model.path",
        )
    if not talker.speaker_id:
        raise ConfigurationError(f"{file}: talker_config.speaker_id names no speaker", field="model.path")
    if not 0 <= talker.accept_hidden_layer < config.thinker_config.text_config.num_hidden_layers:
        raise ConfigurationError(
            f"{file}: talker_config.accept_hidden_layer is not a layer of the thinker",
            field="model.path",
            limit=config.thinker_config.text_config.num_hidden_layers,
        )
    codec = read_codec_tokens(talker)
    if code2wav.codebook_size > codec.never_sampled.start:
        raise ConfigurationError(
            f"{file}: code2wav_config.codebook_size must be at most {codec.never_sampled.start}, the number of the "
            "talker's ids that have audio",
            field="model.path",
            limit=codec.never_sampled.start,
        )
    return SpeechFacts(
        codec=codec,
        groups=groups.pop(),
        codebook_size=code2wav.codebook_size,
        accept_hidden_layer=talker.accept_hidden_layer,
        talker_positions=text.max_position_embeddings,
        frame_samples=math.prod((*code2wav.upsample_rates, *code2wav.upsampling_ratios)),
        lookahead_samples=count_lookahead(code2wav.upsample_rates),
        max_frames=code2wav.max_position_embeddings,
    )


def read_codec_tokens(talker: Qwen3OmniMoeTalkerConfig) -> CodecTokens:
    """Returns the token ids of a talker's configuration."""
    speakers: dict[str, int] = {}
    for name, token in talker.speaker_id.items():
        # Of names that differ only in case, the one in lower case is meant: transformers finds no other.
        if name == str(name).lower() or str(name).lower() not in speakers:
            speakers[str(name).lower()] = int(token)
    ordered = dict(sorted(speakers.items(), key=lambda item: item[0] != DEFAULT_VOICE))
    return CodecTokens(
        padding=talker.codec_pad_id,
        start=talker.codec_bos_id,
        end=talker.codec_eos_token_id,
        no_think=talker.codec_nothink_id,
        think_start=talker.codec_think_bos_id,
        think_end=talker.codec_think_eos_id,
        vocab_size=talker.text_config.vocab_size,
        speakers=MappingProxyType(ordered),
    )


def count_lookahead(rates: list[int] | tuple[int, ...]) -> int:
    """Returns how many samples are missing at the end of the audio, because only a further frame would complete them.

    Each of the decoder's transposed convolutions has kernel 2r and stride r. The r values of one input also need the
    next input, so N inputs give (N - 1) r outputs.
    """
    missing = 0
    for rate in rates:
        missing = (missing + 1) * rate
    return missing
