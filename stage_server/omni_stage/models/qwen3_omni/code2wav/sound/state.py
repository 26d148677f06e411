"""The state that code2wav keeps of a stream between chunks of codes. Its size is independent of the stream's length.

Every layer is causal, so its state is a fixed number of columns: the keys and values of an attention window, the last
inputs of a convolution, or the last input of a transposed convolution. The states of several streams share tensors,
with one row for each stream, so that a step reads and writes all of them in one operation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Shapes of one stream's tensors."""

    attention: tuple[int, int, int, int, int]
    """(layers, 2 for keys and values, heads, window - 1, head size)"""
    columns: tuple[tuple[int, int], ...]
    """(channels, columns) of each convolution, in the order of the computation."""

    @property
    def numbers(self) -> int:
        """Number of values in one stream's state."""
        return math.prod(self.attention) + sum(channels * columns for channels, columns in self.columns)

    def zeros(self, rows: int, device: torch.device) -> States:
        """Returns the state of streams that have not begun: float32 zeros, the padding of causal layers."""
        return States(
            torch.zeros(rows, *self.attention, device=device),
            [torch.zeros(rows, channels, columns, device=device) for channels, columns in self.columns],
        )


@dataclass(slots=True)
class States:
    """The states of several streams: row i of every tensor belongs to stream i."""

    attention: torch.Tensor
    """[streams, layers, 2, heads, window - 1, head size], the newest column last."""
    columns: list[torch.Tensor]
    """[streams, channels, columns] each."""

    def take(self, rows: torch.Tensor) -> States:
        """Returns a copy of these rows."""
        return States(self.attention[rows], [tensor[rows] for tensor in self.columns])

    def put(self, rows: torch.Tensor, values: States) -> None:
        """Overwrite these rows."""
        self.attention[rows] = values.attention
        for tensor, value in zip(self.columns, values.columns, strict=True):
            tensor[rows] = value

    def grow(self, rows: int) -> States:
        """Returns a copy with `rows` additional streams that have not begun."""
        more = [tensor.new_zeros(rows, *tensor.shape[1:]) for tensor in (self.attention, *self.columns)]
        return States(
            torch.cat([self.attention, more[0]]),
            [torch.cat([tensor, added]) for tensor, added in zip(self.columns, more[1:], strict=True)],
        )


def read_layout(model: Any) -> StateLayout:
    """Returns the layout of a Qwen3OmniMoeCode2Wav, from its configuration and its convolutions."""
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    columns: list[tuple[int, int]] = []
    for _, block in model.upsample:
        columns.append(_columns_of(block.dwconv))
    for layer in model.decoder:
        columns.extend(_walk(layer))
    return StateLayout(
        (config.num_hidden_layers, 2, config.num_key_value_heads, config.sliding_window - 1, head_size), tuple(columns)
    )


def _walk(layer: Any) -> Sequence[tuple[int, int]]:
    """Returns (channels, columns) of each convolution in a layer of the decoder, in the order of the computation."""
    if hasattr(layer, "block"):
        return [columns for inner in layer.block for columns in _walk(inner)]
    if hasattr(layer, "conv1"):
        return [_columns_of(layer.conv1), _columns_of(layer.conv2)]
    if hasattr(layer, "left_pad"):
        return [(layer.conv.in_channels, 1)]
    if hasattr(layer, "conv"):
        return [_columns_of(layer)]
    return []


def _columns_of(convolution: Any) -> tuple[int, int]:
    return convolution.conv.in_channels, convolution.padding
