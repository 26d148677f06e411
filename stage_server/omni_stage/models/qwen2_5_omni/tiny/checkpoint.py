"""Writes the tiny checkpoint: configuration -> weights -> tokenizer and processor -> speakers -> directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration
from transformers.utils import logging

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen2_5_omni.tiny import weights
from omni_stage.models.qwen2_5_omni.tiny.shapes import SHAPES, TinyShape, check_shape, config_dict
from omni_stage.models.qwen2_5_omni.tiny.tokenizer import make_processor
from omni_stage.models.qwen2_5_omni.tiny.vocabulary import SPEAKER_BOS_TOKENS

_SHARD_SIZE = "2MB"
"""Small enough for several shards, as large checkpoints have."""


def write_tiny_checkpoint(directory: str | Path, seed: int = 0, shape: str | TinyShape = "small") -> Path:
    """Write a complete tiny Qwen2.5-Omni checkpoint into directory, which is made if need be; return it.

    Equal seed and shape give equal weights. Needs transformers; takes seconds; float32, a few MB.
    Raises ConfigurationError for an unknown shape or sizes that do not fit together.
    """
    sizes = _resolve(shape)
    check_shape(sizes)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    # The constructor draws from the global generator; leave that as it was.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**config_dict(sizes))).float().eval()
    processor = make_processor(sizes.vocab_size)
    tokenizer = processor.tokenizer
    speakers = _make_speakers(tokenizer, model.config.token2wav_config.dit_config, seed)
    weights.fill_weights(model, seed)
    weights.make_text_legible(model.thinker, _legible_token_ids(tokenizer))
    weights.silence_unused_codes(model.talker, sizes.sound_codes)
    weights.make_audible(model.token2wav, speakers["Chelsie"], sizes.sound_codes, seed)
    with quiet_transformers():
        model.save_pretrained(directory, max_shard_size=_SHARD_SIZE)
        processor.save_pretrained(directory)
    torch.save(speakers, directory / "spk_dict.pt")
    _write_generation_config(directory, tokenizer)
    for file in directory.glob("*.safetensors"):
        # safetensors writes for its user only; a pod's user is another.
        file.chmod(0o644)
    return directory


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bars, and without its warnings that ids of the text are no ids of the talker.

    They are not meant to be: the talker's configuration names tokens of both vocabularies, in the real model too.
    """
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _resolve(shape: str | TinyShape) -> TinyShape:
    if isinstance(shape, TinyShape):
        return shape
    if shape not in SHAPES:
        raise ConfigurationError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}", field="shape")
    return SHAPES[shape]


def _make_speakers(tokenizer: Any, dit_config: Any, seed: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: weights.make_speaker(tokenizer.convert_tokens_to_ids(token), dit_config, generator)
        for name, token in SPEAKER_BOS_TOKENS.items()
    }


def _legible_token_ids(tokenizer: Any) -> set[int]:
    """Tokens that read as a word or a mark on their own, and the two that end a text."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    legible = {
        token_id
        for token_id in range(len(tokenizer))
        if token_id not in special and (text := tokenizer.decode([token_id])) and text.isascii() and text.isprintable()
    }
    return legible | {tokenizer.eos_token_id}


def _write_generation_config(directory: Path, tokenizer: Any) -> None:
    settings = {
        "bos_token_id": tokenizer.pad_token_id,
        "eos_token_id": [tokenizer.eos_token_id, tokenizer.pad_token_id],
        "pad_token_id": tokenizer.pad_token_id,
        "do_sample": False,
    }
    (directory / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
