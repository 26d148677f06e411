"""A checkpoint folder with only the config.json of a minimal Qwen2, for tests that use random weights or none."""

from __future__ import annotations

import json
from pathlib import Path


def write_bare_config(directory: Path, **fields: object) -> Path:
    """Writes config.json. `fields` adds or replaces its fields. Returns the directory."""
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
