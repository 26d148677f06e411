"""The published Qwen-Omni checkpoints without their weights, from the files in tests/data/published.

Those files have the name, shape and dtype of every tensor, the sizes of the shards, and config.json byte for byte. From
them this module makes the weights as tensors on the meta device, or a checkpoint directory. The directory's shards list
the published tensors and are sparse files, so all values are zero.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any

import torch

DATA = Path(__file__).parents[2] / "data" / "published"
SIZES = ("7b", "3b")
"""Sizes of Qwen2.5-Omni."""
QWEN3 = "30b-a3b"
"""Qwen3-Omni-30B-A3B-Instruct."""
_FILES = {"7b": "qwen25_omni_7b", "3b": "qwen25_omni_3b", QWEN3: "qwen3_omni_30b_a3b"}
VOICES = {"Chelsie": 151872, "Ethan": 151870}
"""Speaker -> start token, in the order of spk_dict.pt."""
INDEX = "model.safetensors.index.json"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
_BYTES = {"BF16": 2, "F32": 4}
_RANGES = re.compile(r"\{([^}]*)\}")


@dataclass(frozen=True)
class PublishedTensor:
    """One tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """The name in safetensors: BF16 or F32."""

    @property
    def elements(self) -> int:
        """Returns the number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Returns how many bytes of a shard the tensor takes."""
        return self.elements * _BYTES[self.dtype]


def read_table(size: str) -> dict[str, Any]:
    """Returns the table of the checkpoint's shards and tensors. tests/data/README.md describes it."""
    table: dict[str, Any] = json.loads((DATA / f"{_FILES[size]}_tensors.json").read_text())
    return table


def read_added_tokens() -> dict[str, int]:
    """Returns Qwen2.5-Omni's special tokens: text -> ID."""
    tokens: dict[str, int] = json.loads((DATA / "qwen25_omni.added_tokens.json").read_text())
    return tokens


def published_tensors(size: str) -> list[PublishedTensor]:
    """Returns every tensor of the checkpoint, in the order of its modules. Each shard has a slice of this list."""
    rows = read_table(size)["tensors"]
    # Neighbouring rows with the same prefix belong to one kind of layer: they become all of layer 0, then layer 1 ...
    return [
        PublishedTensor(name, tuple(shape), dtype)
        for _, group in groupby(rows, key=lambda row: row[0].partition("{")[0])
        for name, shape, dtype in _by_layer(list(group))
    ]


def meta_weights(size: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the name and tensor of every weight, on the meta device, which needs no memory."""
    for tensor in published_tensors(size):
        yield tensor.name, torch.empty(tensor.shape, dtype=DTYPES[tensor.dtype], device="meta")


def write_published(directory: Path, size: str) -> Path:
    """Writes the published configuration files of Qwen2.5-Omni, and spk_dict.pt with zeros in the published shapes.

    Writes no weights. Returns the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(DATA / f"qwen25_omni_{size}.config.json", directory / "config.json")
    shutil.copy(DATA / "qwen25_omni.generation_config.json", directory / "generation_config.json")
    shutil.copy(DATA / "qwen25_omni.preprocessor_config.json", directory / "preprocessor_config.json")
    speakers = {
        name: {"bos_token": bos, "cond": torch.zeros(1, 192), "ref_mel": torch.zeros(1, 400, 80)}
        for name, bos in VOICES.items()
    }
    torch.save(speakers, directory / "spk_dict.pt")
    return directory


def write_published_qwen3(directory: Path) -> Path:
    """Writes the published config.json, generation_config.json and preprocessor_config.json of Qwen3-Omni.

    Writes no weights. Returns the directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("config", "generation_config", "preprocessor_config"):
        shutil.copy(DATA / f"{_FILES[QWEN3]}.{name}.json", directory / f"{name}.json")
    return directory


def write_sparse_shards(directory: Path, size: str) -> dict[str, list[PublishedTensor]]:
    """Writes shards of the published sizes as sparse files, and their index. Returns shard -> tensors.

    The published order of tensors within a shard is not known, so the written order may differ.
    """
    table = read_table(size)
    remaining = published_tensors(size)
    shards: dict[str, list[PublishedTensor]] = {}
    for shard in table["shards"]:
        shards[shard["file"]], remaining = remaining[: shard["tensors"]], remaining[shard["tensors"] :]
    for file, tensors in shards.items():
        write_header(directory / file, tensors, table["safetensors_metadata"])
    weight_map = {tensor.name: file for file, tensors in shards.items() for tensor in tensors}
    index = {"metadata": {"total_size": table["index_total_size"]}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n")
    return shards


def _expand(pattern: str) -> Iterator[str]:
    """Yields the names that a pattern such as layers.{0-31}.bias stands for."""
    found = _RANGES.search(pattern)
    if found is None:
        yield pattern
        return
    for part in found[1].split(","):
        first, _, last = part.partition("-")
        for index in range(int(first), int(last or first) + 1):
            yield from _expand(pattern[: found.start()] + str(index) + pattern[found.end() :])


def _by_layer(rows: list[list[Any]]) -> Iterator[tuple[str, list[int], str]]:
    found = _RANGES.search(rows[0][0])
    if found is None or len(rows) == 1:
        yield from ((name, shape, dtype) for pattern, shape, dtype, _ in rows for name in _expand(pattern))
        return
    for layer in _expand(found[0]):
        for pattern, shape, dtype, _ in rows:
            yield from ((name, shape, dtype) for name in _expand(_RANGES.sub(layer, pattern, count=1)))


def write_header(file: Path, tensors: list[PublishedTensor], metadata: dict[str, str] | None) -> None:
    """Writes a shard that has a real header. A hole in the file takes the place of the data."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    end = 0
    for tensor in sorted(tensors, key=lambda item: (-_BYTES[item.dtype], item.name)):
        begin, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(stream.tell() + end)
