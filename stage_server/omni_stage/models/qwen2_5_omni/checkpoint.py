"""The facts of a Qwen2.5-Omni checkpoint that the components need: token ids, sizes, voices.

Reads config.json and spk_dict.pt, and neither weights nor model code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Qwen2_5OmniConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.config_file import check_ids, find_dtype, parse_config, read_config

DEFAULT_VOICE = "Chelsie"
_PARTS = {
    "thinker_config": ("text_config",),
    "talker_config": (),
    "token2wav_config": ("dit_config",),
}
"""The mappings that config.json must hold; see parse_config."""


@dataclass(frozen=True, slots=True)
class CodecTokens:
    """Token ids of the talker's vocabulary."""

    padding: int
    start: int
    end: int
    mask: int
    """Stands for "no codec token here" in prompts."""

    @property
    def stop_ids(self) -> tuple[int, int]:
        """Ids that end the codec stream, as in transformers' generate(): padding and end."""
        return (self.padding, self.end)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The attention blocks of a diffusion transformer."""

    codes: int
    """Codec tokens in one block: 12 in the published models."""
    back: int
    """How many blocks before it a block sees over all layers, one for each layer that looks back: 2 in the published
    models."""
    ahead: int
    """How many blocks after it a block sees over all layers: 1 in the published models."""


@dataclass(frozen=True, slots=True)
class AudioShape:
    """How many samples the vocoder makes."""

    frame: int
    """Samples per mel frame: 240 in the published models, which are 10 ms."""
    repeats: int
    """Mel frames per codec token: 2 in the published models."""
    rest: int = 0
    """Samples at the end of each audio that belong to no frame: 0 in the published models."""

    @property
    def code(self) -> int:
        """Samples per codec token: 480 in the published models, which are 20 ms."""
        return self.frame * self.repeats

    def count(self, codes: int) -> int:
        """Returns the number of samples of an audio."""
        return codes * self.code + self.rest


@dataclass(frozen=True, slots=True)
class OmniCheckpoint:
    """The facts of one checkpoint."""

    path: Path
    dtype: str
    """Dtype of the weights, and of the rows between thinker and talker: bfloat16, float16 or float32."""
    hidden_size: int
    """Hidden size of the thinker, and therefore width of the rows."""
    vocab_size: int
    """Vocabulary size of the thinker."""
    placeholder_ids: tuple[int, int, int]
    """Token ids that stand for audio, images and video in prompts."""
    codec: CodecTokens
    text_end_id: int
    """Id in the thinker's vocabulary that ends the text that the talker reads."""
    text_padding_id: int
    """Id in the thinker's vocabulary that the talker reads after the end of the text."""
    talker_positions: int
    """Number of positions of the talker's rotary embedding."""
    code_limit: int
    """Only codec tokens below this have audio; token2wav has no embedding for others."""
    max_codes: int
    """Maximum number of codec tokens in one utterance."""
    blocks: Blocks
    audio: AudioShape


def read_checkpoint(path: str | Path) -> OmniCheckpoint:
    """Returns the facts of the checkpoint at `path`.

    Raises ConfigurationError if it is missing or is not a Qwen2.5-Omni checkpoint.
    """
    directory = Path(path)
    raw = read_config(directory)
    config = parse_config(directory, raw, Qwen2_5OmniConfig, title="Qwen2.5-Omni", parts=_PARTS)
    thinker, talker, dit = config.thinker_config, config.talker_config, config.token2wav_config.dit_config
    vocoder = config.token2wav_config.bigvgan_config
    if dit.repeats < 1:
        raise ConfigurationError(
            f"{directory / 'config.json'}: dit_config.repeats must be at least 1", field="model.path"
        )
    if dit.block_size < dit.repeats:
        raise ConfigurationError(
            f"{directory / 'config.json'}: dit_config.block_size must be at least its repeats, {dit.repeats}",
            field="model.path",
            limit=dit.repeats,
        )
    if vocoder.mel_dim != dit.mel_dim:
        raise ConfigurationError(
            f"{directory / 'config.json'}: mel_dim of bigvgan_config ({vocoder.mel_dim}) and of dit_config "
            f"({dit.mel_dim}) must be equal",
            field="model.path",
        )
    codec = CodecTokens(
        padding=talker.tts_codec_pad_token_id,
        start=talker.tts_codec_start_token_id,
        end=talker.tts_codec_end_token_id,
        mask=talker.tts_codec_mask_token_id,
    )
    placeholder_ids = (thinker.audio_token_index, thinker.image_token_index, thinker.video_token_index)
    text_ids = (talker.tts_text_end_token_id, talker.tts_text_pad_token_id)
    check_ids(directory, (*placeholder_ids, *text_ids), thinker.text_config.vocab_size)
    check_ids(directory, astuple(codec), talker.vocab_size, whose="talker")
    hidden_size = thinker.text_config.hidden_size
    if talker.embedding_size != hidden_size:
        raise ConfigurationError(
            f"{directory / 'config.json'}: talker_config.embedding_size ({talker.embedding_size}) must equal "
            f"the thinker's hidden_size ({hidden_size})",
            field="model.path",
        )
    return OmniCheckpoint(
        path=directory,
        dtype=find_dtype((raw, raw["thinker_config"], raw["thinker_config"]["text_config"])),
        hidden_size=hidden_size,
        vocab_size=thinker.text_config.vocab_size,
        placeholder_ids=placeholder_ids,
        codec=codec,
        text_end_id=talker.tts_text_end_token_id,
        text_padding_id=talker.tts_text_pad_token_id,
        talker_positions=talker.max_position_embeddings,
        code_limit=dit.num_embeds + 1,
        max_codes=dit.max_position_embeddings // dit.repeats,
        blocks=read_blocks(dit),
        audio=read_audio_shape(dit.repeats, vocoder.upsample_rates, vocoder.upsample_kernel_sizes),
    )


def read_blocks(dit: Any) -> Blocks:
    """Returns the attention blocks of a diffusion transformer's configuration."""
    layers = range(dit.num_hidden_layers)
    return Blocks(
        codes=max(1, dit.block_size // dit.repeats),
        back=len(set(dit.look_backward_layers).intersection(layers)),
        ahead=len(set(dit.look_ahead_layers).intersection(layers)),
    )


def read_audio_shape(repeats: int, rates: Sequence[int], kernels: Sequence[int]) -> AudioShape:
    """Returns the shape of a vocoder's audio, from the rates and kernel sizes of its transposed convolutions.

    Each pads its input by (kernel - rate) // 2 at both ends. So if that difference is odd, it gives one sample more.
    """
    rest = 0
    for rate, kernel in zip(rates, kernels, strict=True):
        rest = rest * rate + (kernel - rate) % 2
    return AudioShape(math.prod(rates), repeats, rest)


@dataclass(frozen=True, slots=True)
class Voice:
    """A speaker of spk_dict.pt."""

    text_start_id: int
    """Id in the thinker's vocabulary that starts the text that the talker reads."""
    speaker: torch.Tensor
    """float32 [1, enc_emb_dim]."""
    reference_mel: torch.Tensor
    """float32 [1, frames, mel_dim]."""


def read_voices(path: str | Path) -> dict[str, Voice]:
    """Returns the voices by name, the default first.

    Raises ConfigurationError if spk_dict.pt is missing or malformed.
    """
    file = Path(path) / "spk_dict.pt"
    try:
        # The published file is a pickle; weights_only admits tensors and plain containers, but no code.
        raw = torch.load(file, map_location="cpu", weights_only=True)
        voices = {
            str(name): Voice(
                text_start_id=int(entry["bos_token"]),
                speaker=entry["cond"].float(),
                reference_mel=entry["ref_mel"].float(),
            )
            for name, entry in raw.items()
        }
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the voices at {file}: {error.strerror}; copy the file from the published checkpoint, which "
            "training programs often leave out",
            field="model.path",
        ) from error
    except Exception as error:  # which class torch.load raises depends on the file's content
        raise ConfigurationError(
            f"{file} does not hold voices (bos_token, cond and ref_mel by name)", field="model.path"
        ) from error
    if not voices:
        raise ConfigurationError(f"{file} holds no voice", field="model.path")
    return dict(sorted(voices.items(), key=lambda item: item[0] != DEFAULT_VOICE))


LOOKAHEAD_CODES: Final = 8
"""Minimum number of codes that a window reads after its new blocks. It is rounded up to complete blocks."""
FIRST_BLOCKS: Final = 1
"""Number of new blocks in the first window."""


def lookahead_blocks(blocks: Blocks) -> int:
    """Returns the number of blocks that a window reads after its new blocks."""
    return max(blocks.ahead, -(-LOOKAHEAD_CODES // blocks.codes))


def first_codes(blocks: Blocks) -> int:
    """Returns how many codes the first window reads."""
    return (FIRST_BLOCKS + lookahead_blocks(blocks)) * blocks.codes
