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

from omni_stage.errors import ModelExecutionError


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


_FIRST_ROWS = 8
MAXIMUM_STREAMS = 256
"""Maximum number of streams that may be open concurrently. Their states take 1.3 GB in the published model."""


@dataclass(frozen=True, slots=True)
class _Stream:
    row: int
    frames: int


class StreamPool:
    """States of open streams by id. For use by one thread."""

    def __init__(self, layout: StateLayout, device: torch.device, maximum_streams: int = MAXIMUM_STREAMS) -> None:
        self._layout = layout
        self._device = device
        self._maximum_streams = maximum_streams
        self._states = layout.zeros(0, device)
        self._free: list[int] = []
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def rows(self) -> int:
        """Number of rows allocated so far, in use or free."""
        return self._states.attention.shape[0]

    def check(self, stream: str, first_frame: int) -> None:
        """Check that the stream continues at this frame; a new stream must begin at 0.

        Raises ModelExecutionError if the frame does not follow, or if too many streams are open for a new one.
        """
        known = self._streams.get(stream)
        frames = 0 if known is None else known.frames
        if first_frame != frames:
            raise ModelExecutionError(
                f"a chunk of codes begins at frame {first_frame}, but its stream has {frames} so far; retry the request"
            )
        if known is None and len(self._streams) >= self._maximum_streams:
            raise ModelExecutionError(f"{self._maximum_streams} audio streams are open, and no more fit; add replicas")

    def read(self, streams: Sequence[str | None]) -> States:
        """Returns a copy of these streams' states, in this order; zeros for None and for unknown ids."""
        states = self._layout.zeros(len(streams), self._device)
        places = [(at, self._streams[name].row) for at, name in enumerate(streams) if name in self._streams]
        if places:
            at, rows = (torch.tensor(column).to(self._device) for column in zip(*places, strict=True))
            states.put(at, self._states.take(rows))
        return states

    def write(self, streams: Sequence[str | None], frames: Sequence[int], states: States) -> None:
        """Store the states of the streams that have an id. `frames`: each stream's number of frames so far.

        Raises torch.OutOfMemoryError if the device has no memory for new streams. In this case no state has changed.
        """
        kept = [(at, name) for at, name in enumerate(streams) if name is not None]
        if not kept:
            return
        new = [name for _, name in kept if name not in self._streams]
        self._reserve(len(new))
        lent = dict(zip(new, self._free, strict=False))
        rows = [lent[name] if name in lent else self._streams[name].row for _, name in kept]
        values = states.take(torch.tensor([at for at, _ in kept]).to(self._device))
        self._states.put(torch.tensor(rows).to(self._device), values)
        # Nothing below this line allocates memory on the device.
        del self._free[: len(new)]
        for (at, name), row in zip(kept, rows, strict=True):
            self._streams[name] = _Stream(row, frames[at])

    def drop(self, stream: str) -> None:
        """Free a stream that has ended or was cancelled. Unknown ids are ignored."""
        known = self._streams.pop(stream, None)
        if known is not None:
            self._free.append(known.row)

    def _reserve(self, count: int) -> None:
        """Add rows until at least `count` are free."""
        while len(self._free) < count:
            first = self.rows
            more = max(_FIRST_ROWS, first)
            # These tensors are written inside and outside of inference mode, so they must not be inference tensors.
            with torch.inference_mode(False):
                self._states = self._states.grow(more)
            self._free.extend(range(first, first + more))
