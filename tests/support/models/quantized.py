"""Tiny checkpoints in the layouts of AWQ and GPTQ: linear layers of the thinker's decoder in 4 bits, the rest dense.

The layouts are those of AutoAWQ (version "gemm") and AutoGPTQ. A weight is (q - zero) * scale. Each output has
a scale and a zero for every group of inputs, and eight values q are packed into an int32.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

GROUP = 32
_BITS = 4
_LEVELS = 1 << _BITS
_PACKED = 32 // _BITS
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns each 4-bit group of an int32 contains, from the lowest bits to the highest."""
_LINEAR = re.compile(r"(thinker\.model\.layers\.\d+\.(?:self_attn\.[qkvo]_proj|mlp\.(?:gate|up|down)_proj))\.weight\Z")
INDEX = "model.safetensors.index.json"

AWQ_CONFIG: dict[str, Any] = {
    "bits": _BITS,
    "group_size": GROUP,
    # As in published checkpoints: of the dense modules, the list names only the vision encoder.
    "modules_to_not_convert": ["visual"],
    "quant_method": "awq",
    "version": "gemm",
    "zero_point": True,
}
GPTQ_CONFIG: dict[str, Any] = {
    "bits": _BITS,
    "desc_act": False,
    "group_size": GROUP,
    "quant_method": "gptq",
    "sym": True,
}


def write_quantized(dense: Path, directory: Path, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Writes a quantized copy of a tiny checkpoint to `directory`.

    Returns name -> dequantized weight, float32 [out, in], of the quantized weights.
    """
    shutil.copytree(dense, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    settings = json.loads((directory / "config.json").read_text())
    _name_dtype(settings, "float16")
    settings["quantization_config"] = config
    (directory / "config.json").write_text(json.dumps(settings, indent=2))
    meanings: dict[str, torch.Tensor] = {}
    weight_map: dict[str, str] = {}
    for shard in sorted(dense.glob("*.safetensors")):
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(shard, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                found = _LINEAR.match(name)
                if found is None:
                    tensors[name] = weights.get_tensor(name)
                    continue
                parts, meanings[name] = quantize(weights.get_tensor(name).float(), config)
                tensors |= {f"{found[1]}.{part}": tensor for part, tensor in parts.items()}
        save_file(tensors, directory / shard.name)
        weight_map |= dict.fromkeys(tensors, shard.name)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return meanings


def quantize(weight: torch.Tensor, config: dict[str, Any]) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Quantizes a float32 weight [out, in]. Returns the tensors to store, and the dequantized weight."""
    outputs, inputs = weight.shape
    groups = weight.T.reshape(inputs // GROUP, GROUP, outputs)
    if config["quant_method"] == "gptq":
        scale = (groups.abs().amax(1) / (_LEVELS // 2 - 1)).half()
        zero = torch.full(scale.shape, _LEVELS // 2, dtype=torch.int32)
    else:
        low, high = groups.amin(1), groups.amax(1)
        scale = ((high - low) / (_LEVELS - 1)).half()
        zero = (-low / scale.float()).round().clamp(0, _LEVELS - 1).to(torch.int32)
    levels = (groups / scale.float()[:, None] + zero[:, None]).round().clamp(0, _LEVELS - 1).to(torch.int32)
    meaning = ((levels - zero[:, None]) * scale.float()[:, None]).reshape(inputs, outputs).T.contiguous()
    levels = levels.reshape(inputs, outputs)
    if config["quant_method"] == "gptq":
        return {
            "qweight": _pack(levels.T.contiguous()).T.contiguous(),
            "qzeros": _pack(zero - 1),  # version 1 of the format stores zero - 1
            "scales": scale,
            "g_idx": torch.arange(inputs, dtype=torch.int32) // GROUP,
        }, meaning
    return {"qweight": _pack(_in_awq_order(levels)), "qzeros": _pack(_in_awq_order(zero)), "scales": scale}, meaning


def _pack(values: torch.Tensor) -> torch.Tensor:
    """Packs int32 [rows, columns] into int32 [rows, columns / 8], with the first column in the lowest bits."""
    rows, columns = values.shape
    shifts = torch.arange(0, 32, _BITS, dtype=torch.int32)
    return (values.reshape(rows, columns // _PACKED, _PACKED) << shifts).sum(-1, dtype=torch.int32)


def _in_awq_order(values: torch.Tensor) -> torch.Tensor:
    rows, columns = values.shape
    return values.reshape(rows, columns // _PACKED, _PACKED)[:, :, list(_AWQ_ORDER)].reshape(rows, columns)


def _name_dtype(settings: dict[str, Any], dtype: str) -> None:
    for part in _parts(settings):
        if part.get("torch_dtype") is not None:
            part["torch_dtype"] = dtype


def _parts(settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield settings
    yield settings["thinker_config"]
    yield settings["talker_config"]
