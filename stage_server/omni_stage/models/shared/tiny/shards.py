"""Writes a checkpoint's files in the formats of published checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

SHARD_BYTES: Final = 1_000_000
"""Small enough that a tiny checkpoint has several shards, like large checkpoints."""
_INDEX: Final = "model.safetensors.index.json"


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    """Write the values as JSON, indented by two spaces and in their order, as in the published files."""
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def write_shards(
    directory: Path,
    weights: Iterator[tuple[str, torch.Tensor]],
    *,
    unstored_bytes: int = 0,
    metadata: dict[str, str] | None = None,
) -> None:
    """Write the weights, in their order, into shards of at most about SHARD_BYTES, and the index. Removes old shards.

    `unstored_bytes`: how much the index overstates the total size; `metadata`: written to every shard.
    """
    for old in directory.glob("model-*-of-*.safetensors"):
        old.unlink()
    shards: list[dict[str, torch.Tensor]] = [{}]
    size = total = 0
    for name, tensor in weights:
        if size and size + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            size = 0
        # Clone, because safetensors refuses tensors that share memory.
        shards[-1][name] = tensor.clone()
        size += tensor.nbytes
        total += tensor.nbytes
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = directory / f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file(shard, file, metadata)
        # safetensors makes files readable by their owner only, but a pod runs as another user.
        file.chmod(0o644)
        weight_map |= dict.fromkeys(shard, file.name)
    index = {"metadata": {"total_size": total + unstored_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(directory / _INDEX, index)


def old_rope(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of config.json with `rope_scaling` and `rope_theta` where transformers 5 has `rope_parameters`."""
    rope = dict(values["rope_parameters"])
    theta = rope.pop("rope_theta")
    kept = {name: value for name, value in values.items() if name != "rope_parameters"}
    return kept | {"rope_scaling": {**rope, "type": rope["rope_type"]}, "rope_theta": theta}
