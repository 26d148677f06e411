"""Rows that condition an autoregressive model: one row is added to the model's input at every position.

A request's payload carries its rows, all together or in chunks. Row p belongs to position p, and positions after the
last row repeat it. Before every forward, the runner writes the rows of the scheduled positions, both of prefill and of
decode, into one persistent buffer that the model was bound to. It is a buffer and not a keyword argument because a
captured CUDA graph replays addresses: it would never read a tensor that was created after the capture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.hooks import ScheduledSpan
from omni_stage.vllm_adapter.worker import host_memory

INPUT_ROWS: Final = "input_rows"
"""Payload tensor [R, D], floating point."""
INPUT_ROWS_OFFSET: Final = "input_rows_offset"
"""Payload list [int]: where the rows of a later chunk begin; 0 if absent."""
MROPE_POSITIONS: Final = "mrope_positions"
"""Payload tensor [P, 3], int64: M-RoPE positions of the first P positions of the prompt."""
MROPE_DELTA: Final = "mrope_delta"
"""Payload list [int]: the M-RoPE position of each later token is its index plus this number."""


class InputRows:
    """The rows of one request: [R, D] on the host, growing by chunks at amortised cost."""

    def __init__(self, row_size: int, dtype: torch.dtype) -> None:
        self._data = torch.empty(0, row_size, dtype=dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def write(self, offset: int, rows: torch.Tensor) -> None:
        """Put `rows` [N, D] at `offset` and drop the rows after them.

        Raises InvalidTensorError for a wrong form, or an offset after the last stored row.
        """
        if rows.dim() != 2 or rows.shape[0] == 0 or rows.shape[1] != self._data.shape[1]:
            raise InvalidTensorError(
                f"{INPUT_ROWS} has shape {list(rows.shape)}; this model takes [R, {self._data.shape[1]}] with R of at "
                "least 1",
                field=INPUT_ROWS,
                limit=f"[R, {self._data.shape[1]}]",
            )
        if not rows.is_floating_point():
            raise InvalidTensorError(f"{INPUT_ROWS} has dtype {rows.dtype}; send floating point", field=INPUT_ROWS)
        if not 0 <= offset <= self._length:
            raise InvalidTensorError(
                f"{INPUT_ROWS_OFFSET} is {offset}, but only {self._length} rows have arrived; send chunks in order",
                field=INPUT_ROWS_OFFSET,
                limit=self._length,
            )
        end = offset + rows.shape[0]
        if end > self._data.shape[0]:
            # A first chunk gets exactly its size: most requests send all rows at once.
            capacity = end if self._length == 0 else max(end, 2 * self._data.shape[0])
            grown = self._data.new_empty(capacity, self._data.shape[1])
            grown[:offset] = self._data[:offset]
            self._data = grown
        self._data[offset:end] = rows
        self._length = end

    def copy_to(self, target: torch.Tensor, start: int) -> None:
        """Fill `target` [N, D] with the rows of positions [start, start + N). Later positions get a copy of the last
        row."""
        length = target.shape[0]
        there = min(max(self._length - start, 0), length)
        target[:there] = self._data[start : start + there]
        target[there:] = self._data[self._length - 1]


class InputRowStore:
    """The rows of all requests, and the buffer from which the model reads the rows of a step."""

    def __init__(self, max_num_tokens: int, row_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._row_size = row_size
        self._requests: dict[str, InputRows] = {}
        # These tensors are written both inside and outside of inference mode, so they must not be inference tensors.
        with torch.inference_mode(False):
            self.buffer = torch.zeros(max_num_tokens, row_size, dtype=dtype, device=device)
            staged = host_memory.copies_overlap(device)
            self._staging = host_memory.pinned_empty(self.buffer.shape, dtype).zero_() if staged else self.buffer
        self._filled = 0
        """Rows [0, filled) of the buffer may differ from zero."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    def add(self, request_id: str, payload: AdditionalInformationPayload) -> None:
        """Take the rows of a request, or of a later chunk of it. Raises InvalidTensorError."""
        if INPUT_ROWS not in payload:
            return
        offset = _single_integer(payload, INPUT_ROWS_OFFSET) if INPUT_ROWS_OFFSET in payload else 0
        rows = self._requests.get(request_id) or InputRows(self._row_size, self.buffer.dtype)
        rows.write(offset, payload.tensor(INPUT_ROWS))
        self._requests[request_id] = rows

    def drop(self, request_id: str) -> None:
        """Drop the rows of a request that has ended."""
        self._requests.pop(request_id, None)

    def fill(self, spans: Sequence[ScheduledSpan], num_input_tokens: int) -> None:
        """Write the step's rows, and zeros for requests without rows and for the padding up to num_input_tokens.

        A step needs at most one host-to-device copy. The staging memory is pinned and reused: the caller makes sure
        that the previous step's copy has ended (vLLM's `synchronize_input_prep`).
        """
        if not any(span.request_id in self._requests for span in spans):
            self.clear()
            return
        end = 0
        for span in spans:
            end = span.offset + span.length
            target = self._staging[span.offset : end]
            rows = self._requests.get(span.request_id)
            if rows is None:
                target.zero_()
            else:
                rows.copy_to(target, span.start)
        # Also clear old rows behind the rows of this step, so that a later, larger step finds zeros.
        reach = max(num_input_tokens, self._filled)
        self._staging[end:reach].zero_()
        if self._staging is not self.buffer:
            self.buffer[:reach].copy_(self._staging[:reach], non_blocking=True)
        self._filled = end

    def clear(self) -> None:
        """Set the buffer to zeros, for a step without rows and for dummy runs. Does nothing if it is already zero."""
        if self._filled:
            self.buffer[: self._filled].zero_()
            self._filled = 0


@dataclass(frozen=True, slots=True)
class MropePositions:
    """M-RoPE positions that came with a request: those of its first P tokens, and an offset for later tokens."""

    positions: torch.Tensor
    """[P, 3], int64, host."""
    delta: int
    """Position of a later token minus its index."""

    @classmethod
    def from_payload(cls, payload: AdditionalInformationPayload) -> MropePositions | None:
        """Returns the positions in a payload, or None. Raises InvalidTensorError."""
        if MROPE_POSITIONS not in payload:
            return None
        positions = payload.tensor(MROPE_POSITIONS)
        if positions.dim() != 2 or positions.shape[1] != 3 or positions.dtype != torch.int64:
            raise InvalidTensorError(
                f"{MROPE_POSITIONS} has shape {list(positions.shape)} and dtype {positions.dtype}; send [P, 3], int64",
                field=MROPE_POSITIONS,
                limit="[P, 3], int64",
            )
        return cls(positions, _single_integer(payload, MROPE_DELTA))

    def of_prompt(self, num_prompt_tokens: int) -> torch.Tensor:
        """Returns positions [3, num_prompt_tokens], int64.

        A streaming session's prompt may grow beyond P; those positions are index plus delta.
        """
        result = torch.arange(num_prompt_tokens).repeat(3, 1) + self.delta
        known = min(self.positions.shape[0], num_prompt_tokens)
        result[:, :known] = self.positions[:known].t()
        return result


def _single_integer(payload: AdditionalInformationPayload, name: str) -> int:
    values = payload.list(name)
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int):
        raise InvalidTensorError(f"{name} must be a list of one integer", field=name)
    return values[0]
