"""Rows of an embedding table, compared with the whole table as safetensors reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from omni_stage.errors import ConfigurationError
from omni_stage.models.shared.talker_feed import THINKER_EMBEDDING, EmbeddingTable

INDEX = "model.safetensors.index.json"


def test_rows_are_those_of_the_table(tiny_checkpoint: Path) -> None:
    shard = json.loads((tiny_checkpoint / INDEX).read_text())["weight_map"][THINKER_EMBEDDING]
    whole = load_file(tiny_checkpoint / shard)[THINKER_EMBEDDING]
    table = EmbeddingTable(tiny_checkpoint, THINKER_EMBEDDING, torch.float32)
    ids = torch.tensor([7, 3, 639, 7])
    assert (table.rows, table.width) == whole.shape
    assert torch.equal(table.read(ids), whole[ids].float())
    assert table.read(ids[:0]).shape == (0, whole.shape[1])


def test_missing_files_are_named(tmp_path: Path, tiny_checkpoint: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"model\.safetensors"):
        EmbeddingTable(tmp_path, THINKER_EMBEDDING, torch.float32)
    shutil.copy(tiny_checkpoint / INDEX, tmp_path)
    with pytest.raises(ConfigurationError, match="embed_tokens"):
        EmbeddingTable(tmp_path, THINKER_EMBEDDING, torch.float32)
    (tmp_path / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(ConfigurationError, match="does not say where"):
        EmbeddingTable(tmp_path, THINKER_EMBEDDING, torch.float32)
