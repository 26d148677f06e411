"""A checkpoint folder with nothing but a configuration, of the smallest Qwen2: weights are random, or never read."""

from __future__ import annotations

import json
from pathlib import Path


def write_bare_config(directory: Path, **fields: object) -> Path:
    """Write config.json with `fields` besides what it has in any case; the directory."""
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 512,
        "torch_dtype": "float32",
        **fields,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
