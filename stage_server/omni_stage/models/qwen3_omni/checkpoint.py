"""The facts of a Qwen3-Omni checkpoint that the components need: token ids, sizes, speakers. Reads only config.json.

Finds the messages in a prompt by them. The talker reads only users' messages, as in transformers 5.19's generate().
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTalkerConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.config_file import check_ids, find_dtype, parse_config, read_config


def find_user_tokens(prompt: torch.Tensor, text: TextTokens) -> torch.Tensor:
    """Returns bool [P] for the prompt int64 [P]: whether a token belongs to a user's message, including its markers.

    A message begins with <|im_start|> and the role. Tokens before the first <|im_start|> count as a message that begins
    where the prompt begins.
    """
    length = prompt.shape[0]
    places = torch.arange(length)
    starts = torch.where(prompt == text.message_start, places, -1)
    began = torch.cummax(starts, dim=0).values.clamp_min(0)
    return prompt[(began + 1).clamp_max(length - 1)] == text.user


def find_reply(prompt: torch.Tensor, text: TextTokens) -> int | None:
    """Returns the index at which the prompt's last assistant message begins; None if there is none."""
    begins = (prompt[:-1] == text.message_start) & (prompt[1:] == text.assistant)
    places = torch.nonzero(begins).flatten()
    return int(places[-1]) if places.numel() else None


def find_media(tokens: torch.Tensor, placeholder_ids: Sequence[int]) -> torch.Tensor:
    """Returns bool [n] for tokens int64 [n]: whether a token stands for a medium."""
    return torch.isin(tokens, torch.tensor(list(placeholder_ids)))


DEFAULT_VOICE: Final = "ethan"
_PARTS: Final = {
    "thinker_config": ("text_config", "audio_config", "vision_config"),
    "talker_config": ("text_config", "code_predictor_config"),
    "code2wav_config": (),
}
"""The mappings that config.json must hold; see parse_config."""
_SPEECH_PARTS: Final = ("talker_config", "code2wav_config")
"""Parts that a checkpoint without speech, such as Thinking, lacks."""


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
    codes: int
    """Ids below this are audio codes: the size of code2wav's codebooks."""
    speakers: Mapping[str, int]
    """Speakers' ids by name in lower case, the default first."""

    @property
    def special_ids(self) -> frozenset[int]:
        """All ids that config.json names."""
        named = (self.padding, self.start, self.end, self.no_think, self.think_start, self.think_end)
        return frozenset((*named, *self.speakers.values()))

    @property
    def never_sampled(self) -> range:
        """Ids without audio. They are never sampled, except for `end`, which is one of them.

        transformers' generate() suppresses the last 1,024 ids, which are the same ids in the published models.
        """
        return range(self.codes, self.vocab_size)

    @property
    def placeholders(self) -> tuple[int, int]:
        """Two unused ids, which stand for "text here" and "a medium's hidden state here" in the talker's prompts.

        They are among the ids that are never sampled, so a repetition penalty on them affects no audio code.
        Raises ValueError if fewer than two ids are unused.
        """
        free = (token for token in reversed(self.never_sampled) if token not in self.special_ids)
        text, media = islice(free, 2)
        return text, media


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
    def first_frames(self) -> int:
        """How many frames a stream's first audio needs: 1 in the published model, whose lookahead is shorter than a
        frame."""
        return self.lookahead_samples // self.frame_samples + 1

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
    text = TextTokens(
        message_start=config.im_start_token_id,
        message_end=config.im_end_token_id,
        user=config.user_token_id,
        assistant=config.assistant_token_id,
        speech_start=config.tts_bos_token_id,
        speech_end=config.tts_eos_token_id,
        speech_padding=config.tts_pad_token_id,
    )
    placeholder_ids = (thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id)
    ids = astuple(text) if speaks else (text.message_start, text.message_end, text.user, text.assistant)
    check_ids(directory, (*ids, *placeholder_ids), thinker.text_config.vocab_size)
    return OmniCheckpoint(
        path=directory,
        dtype=find_dtype((raw, raw["thinker_config"], raw["thinker_config"]["text_config"])),
        hidden_size=thinker.text_config.hidden_size,
        vocab_size=thinker.text_config.vocab_size,
        placeholder_ids=placeholder_ids,
        audio_frames=2 * thinker.audio_config.n_window,
        text=text,
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
    talker, code2wav = config.talker_config, config.code2wav_config
    codec = read_codec_tokens(talker, code2wav.codebook_size)
    for problem, limit in _find_problems(config, codec):
        raise ConfigurationError(f"{directory / 'config.json'}: {problem}", field="model.path", limit=limit)
    return SpeechFacts(
        codec=codec,
        groups=talker.num_code_groups,
        codebook_size=code2wav.codebook_size,
        accept_hidden_layer=talker.accept_hidden_layer,
        talker_positions=talker.text_config.max_position_embeddings,
        frame_samples=math.prod((*code2wav.upsample_rates, *code2wav.upsampling_ratios)),
        lookahead_samples=count_lookahead(code2wav.upsample_rates),
        max_frames=code2wav.max_position_embeddings,
    )


def _find_problems(config: Qwen3OmniMoeConfig, codec: CodecTokens) -> Iterator[tuple[str, int | None]]:
    """Yields what in talker_config and code2wav_config does not fit together or is not served, each with its limit."""
    thinker, talker, code2wav = config.thinker_config.text_config, config.talker_config, config.code2wav_config
    predictor = talker.code_predictor_config
    if talker.thinker_hidden_size != thinker.hidden_size:
        yield (
            f"talker_config.thinker_hidden_size ({talker.thinker_hidden_size}) must equal the thinker's hidden_size "
            f"({thinker.hidden_size})",
            thinker.hidden_size,
        )
    if predictor.hidden_size != talker.text_config.hidden_size:
        yield (
            f"code_predictor_config.hidden_size ({predictor.hidden_size}) must equal the talker's hidden_size "
            f"({talker.text_config.hidden_size}), because its embeddings are added to the talker's input",
            talker.text_config.hidden_size,
        )
    if len({talker.num_code_groups, predictor.num_code_groups, code2wav.num_quantizers}) != 1:
        yield (
            "num_code_groups of talker_config and code_predictor_config and num_quantizers of code2wav_config must be "
            "equal",
            None,
        )
    if talker.num_code_groups < 2:
        yield "talker_config.num_code_groups must be at least 2: the talker's code and its code predictor's", 2
    if predictor.vocab_size > code2wav.codebook_size:
        yield (
            f"code_predictor_config.vocab_size must be at most {code2wav.codebook_size}, the codebook_size of "
            "code2wav_config",
            code2wav.codebook_size,
        )
    if "sliding_attention" in (predictor.layer_types or ()):
        yield "code_predictor_config.layer_types: only full_attention is served", None
    if not codec.speakers:
        yield "talker_config.speaker_id names no speaker", None
    if not 0 <= talker.accept_hidden_layer < thinker.num_hidden_layers:
        yield "talker_config.accept_hidden_layer is not a layer of the thinker", thinker.num_hidden_layers
    # transformers takes such a layer's output before the features are added, vLLM after that.
    deepstack = len(config.thinker_config.vision_config.deepstack_visual_indexes)
    if 1 <= talker.accept_hidden_layer <= deepstack:
        yield (
            f"talker_config.accept_hidden_layer must be above {deepstack}, the number of layers to which the vision "
            "encoder adds features (deepstack_visual_indexes)",
            deepstack,
        )
    beyond = [token for token in codec.special_ids if not 0 <= token < codec.vocab_size]
    if beyond:
        yield (
            f"talker_config names the token id {min(beyond)}, which is not in the talker's vocabulary",
            codec.vocab_size,
        )
    if codec.end < codec.codes:
        yield f"talker_config.codec_eos_token_id ({codec.end}) is an audio code (below codebook_size)", codec.codes
    unused = len(set(codec.never_sampled) - codec.special_ids)
    if unused < 2:
        yield (
            f"code2wav_config.codebook_size leaves {max(0, unused)} unused ids in the talker's vocabulary of "
            f"{codec.vocab_size}; at least 2 are needed",
            codec.vocab_size,
        )


def read_codec_tokens(talker: Qwen3OmniMoeTalkerConfig, codes: int) -> CodecTokens:
    """Returns the token ids of a talker's configuration. `codes`: see CodecTokens."""
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
        codes=codes,
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
