"""Writes the tiny checkpoint: configuration, tokenizer, processor, speakers and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

from omni_stage.models.qwen2_5_omni.tiny import release, weights
from omni_stage.models.qwen2_5_omni.tiny.shapes import SHAPES, TinyShape, config_dict
from omni_stage.models.qwen2_5_omni.tiny.tokenizer import make_processor
from omni_stage.models.qwen2_5_omni.tiny.vocabulary import SPEAKER_BOS_TOKENS, SPECIAL_TOKENS
from omni_stage.models.shared.quiet import quiet_transformers
from omni_stage.models.shared.tiny.shards import write_json, write_shards
from omni_stage.models.shared.tiny.sizes import check_shape, find_shape
from omni_stage.models.shared.tiny.tokenizer import legible_token_ids

_SHARD_BYTES = 1_000_000
"""Small enough that the checkpoint has several shards, like large checkpoints."""
_UNSTORED_BYTES = 96
"""The index states so many bytes too many as its total size, as the published 7B index does. No code may rely on that
size."""


def write_tiny_checkpoint(
    directory: str | Path,
    seed: int = 0,
    shape: str | TinyShape = "small",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> Path:
    """Writes a complete tiny Qwen2.5-Omni checkpoint of a few MB into `directory`, in seconds. Returns `directory`.

    Creates the directory if needed. `dtype` is written to config.json: thinker and talker compute and send rows in this
    dtype, unless configured otherwise. It does not change the weights. The weights of thinker and talker are stored in
    bfloat16, which both dtypes represent exactly, and the weights of token2wav in float32. Equal seed and shape give
    equal weights. Needs transformers. Raises ConfigurationError for an unknown shape or sizes that do not fit together.
    """
    sizes = find_shape(shape, SHAPES)
    check_shape(sizes, len(SPECIAL_TOKENS))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = config_dict(sizes)
    # The constructor draws from the global random generator, whose state must not change.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**values)).float().eval()
    processor = make_processor(sizes.vocab_size)
    tokenizer = processor.tokenizer
    speakers = _make_speakers(tokenizer, model.config.token2wav_config.dit_config, seed)
    weights.fill_weights(model, seed)
    weights.make_text_legible(model.thinker, legible_token_ids(tokenizer))
    weights.silence_unused_codes(model.talker, sizes.sound_codes)
    weights.end_after_text(model, sizes.vocab_size - len(SPECIAL_TOKENS))
    weights.make_audible(model.token2wav, speakers["Chelsie"], sizes.sound_codes, seed)
    write_shards(directory, release.release_weights(model), _SHARD_BYTES, unstored_bytes=_UNSTORED_BYTES)
    write_json(directory / "config.json", release.release_config(values, dtype))
    release.write_generation_config(directory)
    with quiet_transformers():
        release.write_processor(directory, processor)
    torch.save(speakers, directory / "spk_dict.pt")
    return directory


def _make_speakers(tokenizer: Any, dit_config: Any, seed: int) -> dict[str, dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed + 1)
    return {
        name: weights.make_speaker(tokenizer.convert_tokens_to_ids(token), dit_config, generator)
        for name, token in SPEAKER_BOS_TOKENS.items()
    }
