"""Writes the tiny checkpoint: tokenizer -> configuration -> weights -> directory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer, Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from omni_stage.errors import ConfigurationError
from omni_stage.models.qwen3_omni.tiny import release, weights
from omni_stage.models.qwen3_omni.tiny.shapes import SHAPES, TinyShape, config_dict
from omni_stage.models.qwen3_omni.tiny.vocabulary import ROLE_SENTENCES, ROLES, SPECIAL_TOKENS
from omni_stage.models.shared.quiet import quiet_transformers
from omni_stage.models.shared.tiny.shards import write_json, write_shards
from omni_stage.models.shared.tiny.sizes import check_shape, find_shape
from omni_stage.models.shared.tiny.tokenizer import legible_token_ids, train_tokenizer

_SHARD_BYTES = 1_000_000
"""Small enough that the checkpoint has several shards, like large checkpoints."""
_TOKEN_PIXELS = 32 * 32


def write_tiny_checkpoint(
    directory: str | Path,
    seed: int = 0,
    shape: str | TinyShape = "small",
    dtype: Literal["bfloat16", "float32"] = "bfloat16",
) -> Path:
    """Writes a complete tiny Qwen3-Omni checkpoint of a few MB into `directory`, in seconds. Returns `directory`.

    Creates the directory if needed. `dtype` is written to config.json: thinker and talker compute and send rows in this
    dtype, unless configured otherwise. It does not change the weights, which are stored in bfloat16. Equal seed and
    shape give equal weights. Raises ConfigurationError for an unknown shape or sizes that do not fit together.
    """
    sizes = find_shape(shape, SHAPES)
    check_shape(sizes, len(SPECIAL_TOKENS))
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    core = train_tokenizer(sizes.vocab_size, SPECIAL_TOKENS, ROLE_SENTENCES)
    values = config_dict(sizes, _find_roles(core))
    write_json(directory / "config.json", release.release_config(values, dtype))
    release.write_generation_config(directory)
    release.write_tokenizer(directory, core)
    release.write_preprocessor_config(directory, max_pixels=64 * _TOKEN_PIXELS, min_pixels=4 * _TOKEN_PIXELS)
    # The constructor draws from the global random generator, whose state must not change.
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        model = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**values)).float().eval()
        tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True)
    weights.fill_weights(model, seed)
    weights.make_text_legible(model.thinker, legible_token_ids(tokenizer))
    weights.silence_unused_codes(model.talker, sizes.sound_codes)
    weights.end_after_text(model, sizes.vocab_size - len(SPECIAL_TOKENS))
    weights.make_audible(model.code2wav, seed)
    write_shards(directory, release.release_weights(model), _SHARD_BYTES, metadata={"format": "pt"})
    return directory


def _find_roles(tokenizer: Tokenizer) -> dict[str, int]:
    """Returns the ids of the role names. Raises ConfigurationError if a name is not exactly one token."""
    ids = {role: tokenizer.encode(f"{role}\n", add_special_tokens=False).ids for role in ROLES}
    for role, found in ids.items():
        if len(found) != 2:
            raise ConfigurationError(
                f"vocab_size leaves no token for the role {role}; raise vocab_size", field="vocab_size"
            )
    return {role: found[0] for role, found in ids.items()}
