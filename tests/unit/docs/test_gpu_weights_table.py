"""The weights' figures in docs/gpu-sizing.md are the sums over the published tensors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.models.published import SIZES, PublishedTensor, published_tensors

PAGE = (Path(__file__).parents[3] / "docs" / "gpu-sizing.md").read_text(encoding="utf-8")
STAGES = ("thinker", "talker", "token2wav")
IGNORED = "token2wav.code2wav_dit_model.rotary_embed.inv_freq"
DECODER_LINEAR = re.compile(r"thinker\.model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight")
GROUP = 128
"""Number of weights that share a scale, as in the published AWQ checkpoint."""


def tensors_of(size: str, stage: str) -> list[PublishedTensor]:
    return [
        tensor for tensor in published_tensors(size) if tensor.name.startswith(f"{stage}.") and tensor.name != IGNORED
    ]


def figures(tensors: list[PublishedTensor]) -> list[str]:
    """Returns the cells for the number of parameters and their size in decimal gigabytes."""
    return [
        f"{sum(tensor.elements for tensor in tensors):,}",
        f"{sum(tensor.nbytes for tensor in tensors) / 1e9:.2f} GB",
    ]


def row_of(first: str) -> list[str]:
    """Returns the other cells of the table row whose first cell is `first`."""
    found = re.search(rf"^\| {re.escape(first)} \|(.*)\|$", PAGE, re.MULTILINE)
    assert found is not None, f"no row {first!r}"
    return [cell.strip() for cell in found[1].split("|")]


@pytest.mark.parametrize("stage", STAGES)
def test_weights_by_stage(stage: str) -> None:
    expected = [cell for size in SIZES for cell in figures(tensors_of(size, stage))]
    dtypes = {tensor.dtype for size in SIZES for tensor in tensors_of(size, stage)}
    dtype = {"BF16": "bfloat16", "F32": "float32"}[dtypes.pop()]
    assert not dtypes
    assert row_of(f"{stage}, weights") == [*expected, dtype]


def test_weights_of_all_stages() -> None:
    expected = [
        cell for size in SIZES for cell in figures([item for stage in STAGES for item in tensors_of(size, stage)])
    ]
    assert row_of("all three")[:-1] == expected


def test_weights_of_a_thinker_in_4_bits() -> None:
    """A weight takes 4 bits. Each group of 128 weights also has a 16-bit scale and a 4-bit zero point.

    Everything but the decoder's linear layers stays at 16 bits.
    """
    cells = []
    for size in SIZES:
        tensors = tensors_of(size, "thinker")
        linear = [tensor for tensor in tensors if DECODER_LINEAR.fullmatch(tensor.name)]
        bits = sum(tensor.elements for tensor in linear) * (4 + (16 + 4) / GROUP)
        dense = sum(tensor.nbytes for tensor in tensors) - sum(tensor.nbytes for tensor in linear)
        cells.append(f"{(bits / 8 + dense) / 1e9:.1f} GB")
    assert row_of("thinker, AWQ or GPTQ in 4 bits") == ["", cells[0], "", cells[1], "float16 and 4 bits"]
