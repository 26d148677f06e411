"""Writes a checkpoint, for `omnipipe tiny-model --family tones`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tones.manifest import ARCHITECTURE


def write_tiny_checkpoint(directory: Path, seed: int = 0, shape: str = "small") -> Path:
    """Write config.json and one weight into the directory, which is created if missing. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    # transformers must know the model_type. A family with its own configuration class registers that class instead.
    config = {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen2",
        "vocab_size": 8,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 0,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "max_position_embeddings": 1024,
        "dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    loudness = 0.1 + 0.5 * torch.rand(1, generator=torch.Generator().manual_seed(seed))
    save_file({"loudness": loudness}, directory / "model.safetensors")
    return directory
