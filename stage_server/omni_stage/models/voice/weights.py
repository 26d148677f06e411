"""Builds a voice's network from its files, and yields its weights under the network's names."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from transformers import VitsConfig
from transformers.activations import ACT2FN

from omni_stage.errors import ConfigurationError
from omni_stage.models.voice.checkpoint import VoiceCheckpoint
from omni_stage.models.voice.piper_weights import read_piper

_LEFT_OUT: Final = ("posterior_encoder.", "duration_predictor.post_", "duration_predictor.flows.1.")
"""Names of weights that only training reads."""
_COUNTS: Final = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "ffn_kernel_size"),
    *(
        "window_size",
        "flow_size",
        "num_speakers",
        "upsample_initial_channel",
        "wavenet_kernel_size",
        "wavenet_dilation_rate",
    ),
    *("duration_predictor_kernel_size", "duration_predictor_num_flows", "duration_predictor_flow_bins"),
    *("duration_predictor_filter_channels", "sampling_rate"),
)
_NORMS: Final = (
    (".parametrizations.weight.original0", ".parametrizations.weight.original1", ".weight"),
    (".weight_g", ".weight_v", ".weight"),
)
"""Names of a normalized weight's length and direction, and of the weight."""


def read_weights(checkpoint: VoiceCheckpoint) -> tuple[VitsConfig, Iterator[tuple[str, torch.Tensor]]]:
    """Returns the network's configuration, and its weights by name. Raises ConfigurationError."""
    if checkpoint.onnx is None:
        return make_config(checkpoint.settings), _read_safetensors(checkpoint.path)
    piper = read_piper(checkpoint.onnx)
    config = make_config({**piper.config, "sampling_rate": checkpoint.sample_rate_hz})
    numbers = [number for ids in checkpoint.settings.get("phoneme_id_map", {}).values() for number in ids]
    for name, stated, there in (
        ("num_speakers", len(checkpoint.voices), config.num_speakers),
        ("the largest number in phoneme_id_map", max(numbers, default=0), config.vocab_size - 1),
    ):
        if stated > there or (stated < there and name == "num_speakers"):
            raise ConfigurationError(
                f"{checkpoint.onnx}.json: {name} is {stated}, but the ONNX file has weights for {there}",
                field="model.path",
            )
    return config, piper.items()


def make_config(values: Any) -> VitsConfig:
    """Returns the configuration. Raises ConfigurationError naming a number that VITS cannot have."""
    try:
        config = VitsConfig(**{name: value for name, value in values.items() if name != "architectures"})
    except Exception as error:  # its validation raises several classes, some of them huggingface_hub's
        raise ConfigurationError(f"the voice's sizes are invalid: {error}", field="model.path") from error
    # Other implementations get masks that VITS' own attention cannot add.
    config._attn_implementation = "eager"
    if problem := next(find_problems(config), None):
        raise ConfigurationError(f"the voice's sizes are invalid: {problem}", field="model.path")
    return config


def find_problems(config: Any) -> Iterator[str]:
    """Yields what is wrong with the numbers of a configuration: contradictions, and values for which no layer exists.

    transformers would build some of these networks, and fail or return wrong audio when they speak.
    """
    for name in _COUNTS:
        if getattr(config, name) < 1:
            yield f"{name} is {getattr(config, name)}, but must be at least 1"
            return
    for name, divisor in (("hidden_size", config.num_attention_heads), ("flow_size", 2)):
        if getattr(config, name) % divisor:
            yield f"{name} is {getattr(config, name)}, which {divisor} does not divide"
    if config.hidden_act not in ACT2FN:
        yield f"hidden_act is {str(config.hidden_act)[:40]!r}, which is no activation"
    for name in ("wavenet_kernel_size", "duration_predictor_kernel_size"):
        if getattr(config, name) % 2 == 0:
            yield f"{name} is {getattr(config, name)}, but must be odd"
    if config.pad_token_id is not None and config.pad_token_id not in range(config.vocab_size):
        yield f"pad_token_id is {config.pad_token_id}, but vocab_size is {config.vocab_size}"
    if config.depth_separable_channels != 2:
        yield f"depth_separable_channels is {config.depth_separable_channels}, but durations have 2 channels"
    if config.num_speakers > 1 and config.speaker_embedding_size < 1:
        yield f"num_speakers is {config.num_speakers}, but speaker_embedding_size is {config.speaker_embedding_size}"
    yield from _find_vocoder_problems(config)


def _find_vocoder_problems(config: Any) -> Iterator[str]:
    rates, kernels = config.upsample_rates, config.upsample_kernel_sizes
    if not rates or len(rates) != len(kernels) or min(rates) < 1:
        yield f"upsample_rates {list(rates)} and upsample_kernel_sizes {list(kernels)} do not fit together"
        return
    for rate, kernel in zip(rates, kernels, strict=True):
        if kernel < rate or (kernel - rate) % 2:
            yield f"an upsample_kernel_size of {kernel} for a rate of {rate} does not multiply the length by {rate}"
    if prod(rates) > config.sampling_rate:
        yield f"upsample_rates {list(rates)} make more than a second of a frame at {config.sampling_rate} Hz"
    if config.upsample_initial_channel >> len(rates) < 1:
        yield f"upsample_initial_channel is {config.upsample_initial_channel}, too few to halve {len(rates)} times"
    sizes, dilations = config.resblock_kernel_sizes, config.resblock_dilation_sizes
    if not sizes or len(sizes) != len(dilations):
        yield f"resblock_kernel_sizes {list(sizes)} and resblock_dilation_sizes {list(dilations)} do not fit together"
    elif any(
        size < 1 or step < 1 or (size - 1) * step % 2
        for size, steps in zip(sizes, dilations, strict=True)
        for step in steps
    ):
        yield f"resblock_kernel_sizes {list(sizes)} must be odd"


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
