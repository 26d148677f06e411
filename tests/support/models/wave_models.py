"""transformers' token2wav models with random weights, small widths and the real structure, and voices for them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniToken2WavConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_stage.models.qwen2_5_omni.checkpoint import Voice
from omni_stage.models.qwen2_5_omni.token2wav.wave.utterance import Utterance

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "head_dim": 32,
    "emb_dim": 32,
    "num_embeds": 129,
    "mel_dim": 16,
    "enc_emb_dim": 24,
    "enc_dim": 32,
    "enc_channels": [32, 32, 32, 32, 96],
    "enc_attention_channels": 16,
    "enc_se_channels": 16,
}
ODD_SHAPE = "layers that see both neighbours"
"""The shape whose numbers all differ from the published ones."""
DIT_SHAPES: dict[str, dict[str, Any]] = {
    # Small widths, but the published structure: transformers' defaults, which the release's config.json repeats.
    "published depth": _SMALL,
    "small blocks": {**_SMALL, "num_hidden_layers": 3, "block_size": 8, "look_ahead_layers": [1]}
    | {"look_backward_layers": [0, 2]},
    ODD_SHAPE: {**_SMALL, "num_hidden_layers": 4, "num_attention_heads": 3, "head_dim": 8}
    | {"block_size": 6, "repeats": 3, "look_ahead_layers": [0, 2], "look_backward_layers": [1, 2]},
}
_VOCODER: dict[str, Any] = {
    "mel_dim": 16,
    "upsample_initial_channel": 64,
    "resblock_kernel_sizes": [3, 5],
    "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5]],
}

_ODD_VOCODER: dict[str, Any] = {"upsample_rates": [4, 3], "upsample_kernel_sizes": [8, 5]}

_VOCODER_STRENGTH = 0.7
"""Scale of the vocoder's weights. Its residual branches add up: with a scale of 1 its output would be clipped noise."""


def make_wave_model(shape: str = "published depth", seed: int = 0) -> Qwen2_5OmniToken2WavModel:
    """Returns transformers' model, float32 on the CPU, with weights that carry a signal through every layer."""
    vocoder = _VOCODER | _ODD_VOCODER if shape == ODD_SHAPE else _VOCODER
    config = Qwen2_5OmniToken2WavConfig(dit_config=DIT_SHAPES[shape], bigvgan_config=vocoder)
    model = Qwen2_5OmniToken2WavModel(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
        parameter.normal_(0, strength(name) * fan_in**-0.5, generator=generator)
    return model


def strength(parameter: str) -> float:
    """Returns the scale of a random parameter, relative to one that preserves the magnitude of its input."""
    return _VOCODER_STRENGTH if "bigvgan" in parameter else 1.0


def make_wave_voices(model: Qwen2_5OmniToken2WavModel, *names: str) -> dict[str, Voice]:
    """Returns name -> voice. The voices' reference mels differ in length."""
    config = model.config.dit_config
    generator = torch.Generator().manual_seed(1)
    return {
        name: Voice(
            text_start_id=0,
            speaker=torch.randn(1, config.enc_emb_dim, generator=generator),
            reference_mel=torch.randn(1, 50 + 7 * index, config.mel_dim, generator=generator),
        )
        for index, name in enumerate(names)
    }


def make_utterance(count: int, seed: int = 0, voice: str = "a", **settings: Any) -> Utterance:
    """Returns an utterance of `count` random codes."""
    codes = torch.randint(129, (count,), generator=torch.Generator().manual_seed(100 + seed))
    return Utterance(codes=codes, voice=voice, seed=seed, **{"steps": 10, "guidance": 0.5, **settings})


WAITS = {"aten._local_scalar_dense.default", "aten.nonzero.default", "aten.equal.default", "aten.item.default"}
"""Operators that need a value on the host, and therefore wait for the device."""


class Operators(TorchDispatchMode):
    """Records the names of all operators that run, and the operator with the largest output in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.largest: tuple[int, str] = (0, "")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                # The memory of an output, not its logical size: a broadcast view has no memory of its own.
                self.largest = max(self.largest, (min(tensor.nbytes, tensor.untyped_storage().nbytes()), str(func)))
        return result
