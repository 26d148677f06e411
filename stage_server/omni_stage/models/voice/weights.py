"""Builds a voice's network from its files, and yields its weights under the network's names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from transformers import VitsConfig

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.checkpoint import VoiceCheckpoint
from omni_stage.models.voice.piper_weights import read_piper

_LEFT_OUT: Final = ("posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1.")
"""Names of weights that only training reads."""
_NORMS: Final = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1", ".weight"),
    (".weight_g", ".weight_v", ".weight"),
)
"""Names of a normalized weight's length and direction, and of the weight."""


def read_weights(checkpoint: VoiceCheckpoint) -> tuple[VitsConfig, Iterator[tuple[str, torch.Tensor]]]:
    """Returns the network's configuration, and its weights by name. Raises ConfigurationError."""
    if checkpoint.onnx is not None:
        piper = read_piper(checkpoint.onnx)
        return make_config(piper.config), piper.items()
    return make_config(checkpoint.settings), _read_safetensors(checkpoint.path)


def make_config(values: Any) -> VitsConfig:
    """Returns the configuration. Raises ConfigurationError."""
    try:
        config = VitsConfig(**{name: value for name, value in values.items() if name != "architectures"})
    except Exception as error:  # its validation raises several classes, some of them huggingface_hub's
        raise ConfigurationError(f"the voice's sizes are invalid: {error}", field="model.path") from error
    # Other implementations get masks that VITS' own attention cannot add.
    config._attn_implementation = "eager"
    if config.num_speakers < 2 and config.speaker_embedding_size:
        config.speaker_embedding_size = 0
    return config


def _read_safetensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigurationError(
            f"{folder} holds no weights: neither NAME.onnx nor *.safetensors; pickled weights are not read",
            field="model.path",
        )
    lengths: dict[str, torch.Tensor] = {}
    directions: dict[str, torch.Tensor] = {}
    for file in files:
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    short = name.removeprefix("vits.")
                    if short.startswith(_LEFT_OUT):
                        continue
                    tensor = opened.get_tensor(name).float()
                    place = next(
                        (
                            (kind, old, new)
                            for *olds, new in _NORMS
                            for kind, old in enumerate(olds)
                            if short.endswith(old)
                        ),
                        None,
                    )
                    if place is None:
                        yield short, tensor
                    else:
                        kind, old, new = place
                        (directions if kind else lengths)[short.removesuffix(old) + new] = tensor
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"cannot read {file}: {error}", field="model.path") from error
    for name in lengths.keys() & directions.keys():
        direction = directions.pop(name)
        norm = direction.flatten(1).norm(dim=1).reshape(-1, *[1] * (direction.dim() - 1))
        yield name, lengths.pop(name).reshape(norm.shape) * direction / norm
    # A half without the other is no weight; the check of the names says so.
    yield from ((f"{name} (half of a normalized weight)", tensor) for name, tensor in {**lengths, **directions}.items())
