"""The state that code2wav keeps of a stream between chunks of codes. Its size is independent of the stream's length.

Every layer is causal, so its state is a fixed number of columns: the keys and values of an attention window, the last
inputs of a convolution, or the last input of a transposed convolution. A stream's state is one row of one table, so
that a step reads the rows of all its streams in one operation, and writes them in another.
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
    """Shapes of one stream's tensors, which are parts of a row, in this order."""

    attention: tuple[int, int, int, int, int]
    """(layers, 2 for keys and values, heads, window - 1, head size), the newest column last."""
    columns: tuple[tuple[int, int], ...]
    """(channels, columns) of each convolution, in the order of the computation."""

    @property
    def numbers(self) -> int:
        """Number of values in one stream's state."""
        return math.prod(self.attention) + sum(channels * columns for channels, columns in self.columns)

    def zeros(self, rows: int, device: torch.device) -> torch.Tensor:
        """Returns the states float32 [rows, numbers] of streams that have not begun: zeros, as causal layers pad."""
        return torch.zeros(rows, self.numbers, device=device)

    def split(self, states: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Returns views of states [rows, numbers]: the attention's part [rows, *attention], and each convolution's
        part [rows, channels, columns]."""
        sizes = [math.prod(self.attention), *(channels * columns for channels, columns in self.columns)]
        rows = len(states)
        attention, *columns = torch.split(states, sizes, dim=1)
        return attention.view(rows, *self.attention), [
            part.view(rows, *shape) for part, shape in zip(columns, self.columns, strict=True)
        ]


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
BLANK, SCRATCH = 0, 1
"""Rows that no stream has: BLANK is always zeros, the state before a stream begins; nobody reads SCRATCH."""


@dataclass(frozen=True, slots=True)
class _Stream:
    row: int
    frames: int


@dataclass(frozen=True, slots=True)
class Turn:
    """The rows of one request in a step: it reads `source`, and writes `target`, which no other request uses."""

    stream: str | None
    source: int
    target: int


class StreamPool:
    """States of open streams by id. For use by one thread.

    A step writes new rows, and a stream takes its new row only when the step has succeeded. So a step that failed can
    run again.
    """

    def __init__(self, layout: StateLayout, device: torch.device, maximum_streams: int = MAXIMUM_STREAMS) -> None:
        self._maximum_streams = maximum_streams
        # This table is written inside and outside of inference mode, so it must not be an inference tensor.
        with torch.inference_mode(False):
            self.states = layout.zeros(2, device)
        """[rows, numbers]"""
        self._free: list[int] = []
        self._streams: dict[str, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    @property
    def rows(self) -> int:
        """Number of rows allocated so far for streams, in use or free."""
        return len(self.states) - 2

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
        if known is None:
            self._admit(1)

    def begin(self, streams: Sequence[str | None]) -> list[Turn]:
        """Returns the rows of a step's requests; None is a request whose codes are all in this step.

        End the turns with `keep` or `give_back`. Raises ModelExecutionError if too many streams would be open, and
        torch.OutOfMemoryError without memory for more rows.
        """
        self._admit(sum(stream is not None and stream not in self._streams for stream in streams))
        self.reserve(len(streams))
        known = [self._streams.get(stream) if stream is not None else None for stream in streams]
        sources = [BLANK if stream is None else stream.row for stream in known]
        return [Turn(stream, source, self._free.pop()) for stream, source in zip(streams, sources, strict=True)]

    def keep(self, turns: Sequence[Turn], frames: Sequence[int]) -> None:
        """Advance the streams. `frames`: each stream's number of frames so far."""
        for turn, count in zip(turns, frames, strict=True):
            if turn.stream is None:
                self._free.append(turn.target)
                continue
            self.drop(turn.stream)
            self._streams[turn.stream] = _Stream(turn.target, count)

    def give_back(self, turns: Sequence[Turn]) -> None:
        """End the turns of a step that failed; the streams stay where they were."""
        self._free.extend(turn.target for turn in turns)

    def drop(self, stream: str) -> None:
        """Free a stream that has ended or was cancelled. Unknown ids are ignored."""
        known = self._streams.pop(stream, None)
        if known is not None:
            self._free.append(known.row)

    def _admit(self, new: int) -> None:
        if new and len(self._streams) + new > self._maximum_streams:
            raise ModelExecutionError(f"{self._maximum_streams} audio streams are open, and no more fit; add replicas")

    def reserve(self, count: int) -> None:
        """Add rows until at least `count` are free. The table moves then, so CUDA graphs need all rows beforehand."""
        more = max(count - len(self._free), 0)
        if not more:
            return
        more = max(more, _FIRST_ROWS, self.rows)
        first = len(self.states)
        with torch.inference_mode(False):
            self.states = torch.cat([self.states, self.states.new_zeros(more, self.states.shape[1])])
        self._free.extend(range(first + more - 1, first - 1, -1))
