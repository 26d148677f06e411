"""What the components need to know of a Qwen2.5-Omni checkpoint: token ids, sizes, voices and a few embedding rows.

Reads config.json, spk_dict.pt and slices of the safetensors files; never whole weights, and no model code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import Qwen2_5OmniConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.quiet import quiet_transformers

DEFAULT_VOICE = "Chelsie"
_EMBEDDING = "thinker.model.embed_tokens.weight"
_DTYPES = ("bfloat16", "float16", "float32")


_MODEL_TYPE = "qwen2_5_omni"
_PARTS = {
    "thinker_config": ("text_config",),
    "talker_config": (),
    "token2wav_config": ("dit_config",),
}
"""What config.json must hold: transformers fills in the sizes of the 7B model for a missing part."""


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
class OmniCheckpoint:
    """The facts of one checkpoint."""

    path: Path
    dtype: str
    """Of the weights, and of the rows between thinker and talker: bfloat16, float16 or float32."""
    hidden_size: int
    """Of the thinker, and therefore of the rows."""
    vocab_size: int
    """Of the thinker."""
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
    """Codec tokens below this have audio; token2wav has no embedding for others."""
    max_codes: int
    """Most codec tokens of one utterance."""
    block_codes: int
    """Codec tokens of a block, within which the diffusion transformer attends."""


def read_checkpoint(path: str | Path) -> OmniCheckpoint:
    """Read the checkpoint at path. Raises ConfigurationError if it is missing or no Qwen2.5-Omni checkpoint."""
    directory = Path(path)
    raw = _read_config(directory)
    config = _parse_config(directory, raw)
    thinker, talker, dit = config.thinker_config, config.talker_config, config.token2wav_config.dit_config
    hidden_size = thinker.text_config.hidden_size
    if talker.embedding_size != hidden_size:
        raise ConfigurationError(
            f"{directory / 'config.json'}: talker_config.embedding_size ({talker.embedding_size}) must equal "
            f"the thinker's hidden_size ({hidden_size})",
            field="model.path",
        )
    return OmniCheckpoint(
        path=directory,
        dtype=_find_dtype(raw),
        hidden_size=hidden_size,
        vocab_size=thinker.text_config.vocab_size,
        placeholder_ids=(thinker.audio_token_index, thinker.image_token_index, thinker.video_token_index),
        codec=CodecTokens(
            padding=talker.tts_codec_pad_token_id,
            start=talker.tts_codec_start_token_id,
            end=talker.tts_codec_end_token_id,
            mask=talker.tts_codec_mask_token_id,
        ),
        text_end_id=talker.tts_text_end_token_id,
        text_padding_id=talker.tts_text_pad_token_id,
        talker_positions=talker.max_position_embeddings,
        code_limit=dit.num_embeds + 1,
        max_codes=dit.max_position_embeddings // dit.repeats,
        block_codes=max(1, dit.block_size // dit.repeats),
    )


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
        # The publisher chose a pickle file; weights_only admits tensors and plain containers, no code.
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
        raise ConfigurationError(f"cannot read the voices at {file}: {error.strerror}", field="model.path") from error
    except Exception as error:  # which class torch.load raises depends on the file's content
        raise ConfigurationError(
            f"{file} does not hold voices (bos_token, cond and ref_mel by name)", field="model.path"
        ) from error
    if not voices:
        raise ConfigurationError(f"{file} holds no voice", field="model.path")
    return dict(sorted(voices.items(), key=lambda item: item[0] != DEFAULT_VOICE))


def read_embedding_rows(path: str | Path, token_ids: Sequence[int]) -> torch.Tensor:
    """Returns rows [len(token_ids), hidden_size] of the thinker's input embedding, on the CPU.

    They have the checkpoint's dtype. Reads only these rows from disk. Raises ConfigurationError.
    """
    directory = Path(path)
    file = directory / _find_shard(directory)
    try:
        with safe_open(file, framework="pt") as weights:
            table = weights.get_slice(_EMBEDDING)
            return torch.cat([table[token_id : token_id + 1] for token_id in token_ids])
    except Exception as error:  # safetensors has no public base class for its errors
        raise ConfigurationError(
            f"cannot read {_EMBEDDING} from {file}: {type(error).__name__}", field="model.path"
        ) from error


def _find_shard(directory: Path) -> str:
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return "model.safetensors"
    try:
        return str(json.loads(index.read_text(encoding="utf-8"))["weight_map"][_EMBEDDING])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{index} does not say where {_EMBEDDING} is", field="model.path") from error


def _read_config(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}", field="model.path") from error
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON", field="model.path") from error
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file} must hold a mapping", field="model.path")
    return config


def _parse_config(directory: Path, raw: Mapping[str, Any]) -> Qwen2_5OmniConfig:
    """Parse the configuration with transformers, so that keys missing in the file get their defaults.

    Raises ConfigurationError naming the field.
    """
    file = directory / "config.json"
    if raw.get("model_type") != _MODEL_TYPE:
        raise ConfigurationError(
            f"{file} is not a Qwen2.5-Omni configuration: its model_type is not {_MODEL_TYPE}", field="model.path"
        )
    for part, inner in _PARTS.items():
        for where, values in ((part, raw), *((f"{part}.{name}", raw.get(part)) for name in inner)):
            if not isinstance(values, dict) or not isinstance(values.get(where.rpartition(".")[2]), dict):
                raise ConfigurationError(
                    f"{file} is not a Qwen2.5-Omni configuration: {where} is missing", field="model.path"
                )
    try:
        # It warns that the text's token ids are not ids of the talker; they are not meant to be.
        with quiet_transformers():
            config = Qwen2_5OmniConfig.from_dict(dict(raw))
    except Exception as error:  # its validation raises several classes, some of them huggingface_hub's
        raise ConfigurationError(f"{file}: {_one_line(error)}", field="model.path") from error
    if config.token2wav_config.dit_config.repeats < 1:
        raise ConfigurationError(f"{file}: dit_config.repeats must be at least 1", field="model.path")
    return config


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _find_dtype(config: Mapping[str, Any]) -> str:
    # Older transformers wrote torch_dtype; some writers name it in the parts only.
    for part in (config, config["thinker_config"], config["thinker_config"]["text_config"]):
        dtype = part.get("dtype") or part.get("torch_dtype")
        if dtype in _DTYPES:
            return str(dtype)
    return "bfloat16"
