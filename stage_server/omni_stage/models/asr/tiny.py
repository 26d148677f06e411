"""Writes a tiny Whisper with seeded random weights, in transformers' format. It writes random letters, not words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

from omni_stage.errors import ConfigurationError
from omni_stage.models.asr.windows import TICK_S, WINDOW_S
from omni_stage.models.shared.config_file import quiet_transformers
from omni_stage.models.shared.tiny.shards import write_json

_LANGUAGES: Final = ("en", "zh", "de", "es", "fr")
_TEXT_IDS: Final = 320
_POSITIONS: Final = 448
_SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {"small": {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96}}
)


def write_tiny_checkpoint(directory: str | Path, seed: int = 0, shape: str = "small") -> Path:
    """Writes a complete tiny Whisper into `directory`. Returns `directory`.

    Creates the directory if needed. Equal seed and shape give equal weights. Raises ConfigurationError for an unknown
    shape.
    """
    if shape not in _SHAPES:
        raise ConfigurationError(f"unknown shape {shape!r}; known: {', '.join(_SHAPES)}", field="shape")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    added = _special_tokens()
    ids = {token: _TEXT_IDS + number for number, token in enumerate(added)}
    (directory / "tokenizer.json").write_text(json.dumps(_tokenizer(ids), ensure_ascii=False), encoding="utf-8")
    end = "<|endoftext|>"
    write_json(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "WhisperTokenizer", "bos_token": end, "eos_token": end, "unk_token": end, "pad_token": end},
    )
    write_json(directory / "preprocessor_config.json", _preprocessor())
    config = WhisperConfig(
        vocab_size=_TEXT_IDS + len(added),
        num_mel_bins=80,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_target_positions=_POSITIONS,
        bos_token_id=ids[end],
        eos_token_id=ids[end],
        pad_token_id=ids[end],
        decoder_start_token_id=ids["<|startoftranscript|>"],
        suppress_tokens=None,
        begin_suppress_tokens=None,
        # Large enough that the logits of greedy tokens differ by more than rounding errors.
        init_std=0.3,
        dtype="float32",
        **_SHAPES[shape],
    )
    # The constructor draws from the global random generator, whose state must not change.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = WhisperForConditionalGeneration(config)
        _prefer_letters(model, ids)
        model.save_pretrained(directory, safe_serialization=True)
    write_json(directory / "generation_config.json", _generation(ids))
    (directory / "model.safetensors").chmod(0o644)
    return directory


def _special_tokens() -> list[str]:
    times = [f"<|{number * TICK_S:.2f}|>" for number in range(round(WINDOW_S / TICK_S) + 1)]
    languages = [f"<|{language}|>" for language in _LANGUAGES]
    named = ["translate", "transcribe", "startoflm", "startofprev", "nospeech", "notimestamps"]
    return ["<|endoftext|>", "<|startoftranscript|>", *languages, *(f"<|{name}|>" for name in named), *times]


def _tokenizer(ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns tokenizer.json of a byte-level BPE with the 256 bytes and a few pairs of letters."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = sorted(ByteLevel.alphabet())
    letters = "etaoinshrdlu"
    pairs = [(one, two) for one in letters for two in letters][: _TEXT_IDS - len(vocabulary)]
    vocabulary += [one + two for one, two in pairs]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": number,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": not token[2].isdigit(),
            }
            for token, number in ids.items()
        ],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: number for number, token in enumerate(vocabulary)},
            "merges": [list(pair) for pair in pairs],
        },
    }


def _preprocessor() -> dict[str, Any]:
    return {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "processor_class": "WhisperProcessor",
        "feature_size": 80,
        "sampling_rate": 16_000,
        "hop_length": 160,
        "chunk_length": round(WINDOW_S),
        "n_fft": 400,
        "padding_value": 0.0,
        "padding_side": "right",
        "return_attention_mask": False,
    }


def _generation(ids: Mapping[str, int]) -> dict[str, Any]:
    end = ids["<|endoftext|>"]
    return {
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "is_multilingual": True,
        "max_length": _POSITIONS,
        "max_initial_timestamp_index": 50,
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "prev_sot_token_id": ids["<|startofprev|>"],
        "lang_to_id": {f"<|{language}|>": ids[f"<|{language}|>"] for language in _LANGUAGES},
        "task_to_id": {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        "begin_suppress_tokens": [ids["<|endoftext|>"], 32],
        "suppress_tokens": [1, 2, *(ids[f"<|{name}|>"] for name in ("startoftranscript", "translate", "transcribe"))]
        + [ids[f"<|{name}|>"] for name in ("startoflm", "startofprev", "nospeech")],
    }


def _prefer_letters(model: WhisperForConditionalGeneration, ids: Mapping[str, int]) -> None:
    """Lower the special tokens' part of the output, which is also the embedding, so that letters are written."""
    weights = model.get_output_embeddings().weight
    with torch.no_grad():
        weights[ids["<|startoftranscript|>"] :] *= 0.3
