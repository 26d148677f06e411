"""Writes a tiny voice with seeded random weights, in transformers' format. It makes vowel-like noise, not words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import nn

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.tiny.shards import write_json
from omni_stage.models.shared.tiny.weights import PEAK, measure_peak
from omni_stage.models.voice.vits import Speaker, Utterance, Vits
from omni_stage.models.voice.weights import make_config

SYMBOLS: Final = " abcdefghijklmnopqrstuvwxyz0123456789'.,?!-"
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "small": {"resblock": "2"},
        "speakers": {
            "resblock": "1",
            "num_speakers": 3,
            "speaker_embedding_size": 8,
            "speaker_id_map": {"ada": 0, "bo": 1, "cy": 2},
        },
    }
)


def write_tiny_checkpoint(directory: str | Path, seed: int = 0, shape: str = "small") -> Path:
    """Writes a complete tiny voice into `directory`. Returns `directory`.

    Creates the directory if needed. Equal seed and shape give equal weights. Raises ConfigurationError for an unknown
    shape.
    """
    if shape not in SHAPES:
        raise ConfigurationError(f"unknown shape {shape!r}; known: {', '.join(SHAPES)}", field="shape")
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    values = _config(SHAPES[shape])
    write_json(directory / "config.json", values)
    write_json(directory / "vocab.json", {symbol: number for number, symbol in enumerate(["_", *SYMBOLS])})
    write_json(
        directory / "tokenizer_config.json",
        {
            "add_blank": True,
            "is_uroman": False,
            "language": "eng",
            "normalize": True,
            "pad_token": "_",
            "phonemize": False,
        },
    )
    config = make_config(values)
    # The constructor draws from the global random generator, whose state must not change.
    with torch.random.fork_rng(devices=[]):
        model = Vits(config).float().eval()
    _fill(model, seed)
    _make_audible(model, config)
    file = directory / "model.safetensors"
    save_file({name: tensor.clone() for name, tensor in model.state_dict().items()}, file, {"format": "pt"})
    file.chmod(0o644)
    return directory


def _config(shape: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "vits",
        "architectures": ["VitsModel"],
        "vocab_size": len(SYMBOLS) + 1,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "ffn_dim": 64,
        "flow_size": 16,
        "upsample_initial_channel": 32,
        "upsample_rates": [8, 4],
        "upsample_kernel_sizes": [16, 8],
        "resblock_kernel_sizes": [3, 5],
        "resblock_dilation_sizes": [[1, 2], [2, 6]],
        "prior_encoder_num_flows": 2,
        "prior_encoder_num_wavenet_layers": 2,
        "duration_predictor_num_flows": 2,
        "depth_separable_num_layers": 2,
        "sampling_rate": 16_000,
        **shape,
    }


def _fill(model: Vits, seed: int) -> None:
    """Draw the weights from one generator, in place."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if "norm" in name:
                continue
            scale = 0.05 if parameter.dim() < 2 or name.endswith("bias") else 1.1 / math.sqrt(_fan_in(model, name))
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
        # About 12 frames a symbol.
        affine = model.get_submodule("duration_predictor.flows.0")
        affine.get_parameter("translate").fill_(2.5)
        affine.get_parameter("log_scale").fill_(1.0)


def _fan_in(model: Vits, name: str) -> int:
    module = model.get_submodule(name.rpartition(".")[0])
    weight: torch.Tensor = model.get_parameter(name)
    if isinstance(module, nn.ConvTranspose1d):
        return max(1, weight.shape[0] * weight.shape[2] // module.stride[0])
    return 1 if isinstance(module, nn.Embedding) else max(1, math.prod(weight.shape[1:]))


def _make_audible(model: Vits, config: Any) -> None:
    """Scale the last layer so that a trial utterance peaks at PEAK."""
    trial = [Utterance([*range(1, 20)], 0, 0, 0.667, 0.8, 1.0)]
    last = model.decoder.conv_post
    with torch.no_grad():
        last.weight.sub_(last.weight.mean(dim=-1, keepdim=True))  # so that the audio has no constant offset
        peak = measure_peak(last, lambda: Speaker(model, config, use_graphs=False).speak(trial))
        last.weight.mul_(math.atanh(PEAK) / peak)
