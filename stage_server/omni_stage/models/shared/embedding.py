"""Reads rows of a checkpoint's embedding table from its files when they are needed, without loading the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open

from omni_stage.errors import ConfigurationError

THINKER_EMBEDDING: Final = "thinker.model.embed_tokens.weight"
"""The thinker's input embedding, in the checkpoints of both Omni families."""
_INDEX: Final = "model.safetensors.index.json"


class EmbeddingTable:
    """One embedding table. Its file stays open, and the kernel caches its pages. Safe to use from several threads."""

    def __init__(self, path: Path, name: str, dtype: torch.dtype) -> None:
        """`name`: the tensor's name; `dtype`: dtype of the returned rows. Raises ConfigurationError."""
        file = path / _find_shard(path, name)
        self._name = name
        self._dtype = dtype
        try:
            # The file must stay open as long as this table is used: slices are read through it.
            self._file: Any = safe_open(file, framework="pt")
            self._table: Any = self._file.get_slice(name)  # type: ignore[no-untyped-call]
            self.rows, self.width = (int(size) for size in self._table.get_shape())
        except Exception as error:  # safetensors has no public base class for its errors
            raise ConfigurationError(
                f"cannot read {name} from {file}: {type(error).__name__}", field="model.path"
            ) from error

    def read(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the rows [n, width] of token ids int64 [n], on the CPU. Every id must be in [0, self.rows)."""
        distinct, places = torch.unique(token_ids, return_inverse=True)
        if not distinct.numel():
            return torch.empty(0, self.width, dtype=self._dtype)
        rows = torch.cat([self._table[token_id : token_id + 1] for token_id in distinct.tolist()])
        return rows.to(self._dtype)[places]


def _find_shard(directory: Path, name: str) -> str:
    index = directory / _INDEX
    if not index.exists():
        return "model.safetensors"
    try:
        return str(json.loads(index.read_text(encoding="utf-8"))["weight_map"][name])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{index} does not say where {name} is", field="model.path") from error
