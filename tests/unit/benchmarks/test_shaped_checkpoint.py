"""Checkpoints of a release's size with random weights: the tokenizer has the published ids, and tensors are filled."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from benchmarks.gpu.checks import DRAWN, Context
from benchmarks.gpu.stages import shaped
from safetensors.torch import load_file

from omni_stage.models.qwen2_5_omni.tiny.checkpoint import ROTARY_TABLE
from support.models.published import read_added_tokens

SHAPES = {"a.norm.weight": ("F32", [6]), "a.q_proj.bias": ("BF16", [4]), "a.q_proj.weight": ("BF16", [64, 256])}


def test_special_tokens_have_the_published_ids() -> None:
    tokenizer = shaped.make_tokenizer()
    for name, token_id in read_added_tokens().items():
        assert tokenizer.token_to_id(name) == token_id
    assert tokenizer.get_vocab_size() == max(read_added_tokens().values()) + 1
    assert tokenizer.decode(tokenizer.encode("Grüße, <|im_start|>").ids, skip_special_tokens=True) == "Grüße, "


def test_a_shard_is_filled(tmp_path: Path) -> None:
    header, end = {}, 0
    for name, (dtype, shape) in SHAPES.items():
        size = torch.Size(shape).numel() * (4 if dtype == "F32" else 2)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    file = tmp_path / "shard.safetensors"
    file.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    shaped.fill_shard(file)
    found = load_file(file)
    assert found["a.norm.weight"].tolist() == [1.0] * 6
    assert found["a.q_proj.bias"].tolist() == [0.0] * 4
    assert float(found["a.q_proj.weight"].float().std()) == pytest.approx(1 / 16, rel=0.1)


def test_the_rotary_table_is_no_draw() -> None:
    """The rotary table has the computed frequencies, not random numbers."""
    assert shaped.draw(ROTARY_TABLE, (4,), torch.float32).tolist() == pytest.approx([1, 0.1, 0.01, 0.001])


def test_what_is_drawn_is_no_published_model(tmp_path: Path) -> None:
    """The file DRAWN in a checkpoint's directory says that its weights are random."""
    assert not Context("cpu", 0, tmp_path, tmp_path).shaped
    (tmp_path / DRAWN).touch()
    assert Context("cpu", 0, tmp_path, tmp_path).shaped
