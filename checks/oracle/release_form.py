"""Converts a checkpoint written by transformers 5 to the release's form, which transformers 4.52.4 reads.

The weights are the same. Names of settings and of files changed between the versions.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_INV_FREQ = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
_SAME_FILES = ("spk_dict.pt", "tokenizer.json", "chat_template.jinja", "chat_template.json", "generation_config.json")
_TOKEN_NAMES = ("image", "audio", "video", "vision_bos", "vision_eos", "audio_bos", "audio_eos")


def write_release_form(source: Path, target: Path) -> None:
    """Writes the checkpoint in `source` to the new folder `target` in the release's form.

    A checkpoint that already has that form keeps it.
    """
    target.mkdir(parents=True)
    for name in _SAME_FILES:
        if (source / name).exists():
            shutil.copy(source / name, target / name)
    config = release_config(json.loads((source / "config.json").read_text(encoding="utf-8")))
    config["architectures"] = ["Qwen2_5OmniModel"]
    _write_json(target / "config.json", config)
    weights: dict[str, torch.Tensor] = {}
    for file in sorted(source.glob("*.safetensors")):
        weights |= load_file(file)
    # transformers 4.52.4 expects this buffer, which transformers 5 no longer saves.
    weights.setdefault(_INV_FREQ, _rotary_frequencies(config["token2wav_config"]["dit_config"]["head_dim"]))
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    tokenizer = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    names = {name: value for name in _TOKEN_NAMES if (value := tokenizer.get(f"{name}_token"))}
    tokenizer |= {
        "tokenizer_class": "Qwen2TokenizerFast",
        "extra_special_tokens": {f"{name}_token": value for name, value in names.items()},
    }
    _write_json(target / "tokenizer_config.json", tokenizer)
    if (source / "preprocessor_config.json").exists():
        shutil.copy(source / "preprocessor_config.json", target / "preprocessor_config.json")
    else:
        parts = json.loads((source / "processor_config.json").read_text(encoding="utf-8"))
        pixels = parts["image_processor"]["size"]
        _write_json(
            target / "preprocessor_config.json",
            {
                **parts["image_processor"],
                **parts["feature_extractor"],
                "processor_class": "Qwen2_5OmniProcessor",
                "image_processor_type": "Qwen2VLImageProcessor",
                "min_pixels": pixels["shortest_edge"],
                "max_pixels": pixels["longest_edge"],
            },
        )


def release_config(config: dict[str, Any]) -> dict[str, Any]:
    """Returns the configuration with transformers 4's names: rope_scaling and rope_theta, torch_dtype."""
    converted: dict[str, Any] = {}
    for name, value in config.items():
        if name == "rope_parameters":
            rope = dict(value)
            converted["rope_theta"] = rope.pop("rope_theta")
            if "mrope_section" in rope:
                converted["rope_scaling"] = {"type": "default", **rope}
        elif name == "dtype":
            converted["torch_dtype"] = value
        elif name != "layer_types":
            converted[name] = release_config(value) if isinstance(value, dict) else value
    return converted


def _rotary_frequencies(head_dim: int) -> torch.Tensor:
    """Returns float32 [head_dim / 2], as Qwen2_5OmniDiTRotaryEmbedding of transformers 4.52.4 computes them."""
    return 1.0 / (10_000 ** (torch.arange(0, head_dim, 2).float() / head_dim))


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
