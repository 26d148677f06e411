"""Stores each frame's codes after the first, by request and position: they are part of the input at that position.

One table on the device holds all codes. They are written as they are predicted, without waiting for the device; the
host knows only how many frames each request has. When a position is computed again, after a preemption or in a later
part of a streamed request, the codes that were stored for it are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from omni_stage.vllm_adapter.hooks import ScheduledSpan
from omni_stage.vllm_adapter.worker.host_memory import to_device

_FIRST_ROWS = 8
_FIRST_FRAMES = 256


@dataclass(slots=True)
class _Kept:
    row: int
    first: int
    """Position of the first frame."""
    frames: int


@dataclass(frozen=True, slots=True)
class Places:
    """The tokens of a step that have stored codes. Lists on the host, with one entry for each of these tokens."""

    tokens: list[int]
    """Index of the token in the step's batch."""
    rows: list[int]
    """The request's row in the table."""
    frames: list[int]
    """Index of the frame in that row."""


class FrameCodes:
    """Codes of the running requests' frames. For use by one thread."""

    def __init__(self, codes: int, device: torch.device) -> None:
        """`codes`: number of a frame's codes after the first."""
        # This table is written inside and outside of inference mode, so it must not be an inference tensor.
        with torch.inference_mode(False):
            self._table = torch.zeros(_FIRST_ROWS, _FIRST_FRAMES, codes, dtype=torch.int16, device=device)
        self._requests: dict[str, _Kept] = {}
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._requests)

    def drop(self, request_id: str) -> None:
        """Free the codes of a request that has ended. Unknown ids are ignored."""
        kept = self._requests.pop(request_id, None)
        if kept is not None:
            self._free.append(kept.row)

    def write(self, request_ids: Sequence[str], positions: Sequence[int], codes: torch.Tensor) -> None:
        """Store the codes int64 [n, codes] of the frames at these positions of the requests."""
        rows, frames = [], []
        for request_id, position in zip(request_ids, positions, strict=True):
            kept = self._requests.get(request_id)
            if kept is None:
                kept = self._requests[request_id] = _Kept(self._lend(), position, 0)
            frame = position - kept.first
            kept.frames = max(kept.frames, frame + 1)
            rows.append(kept.row)
            frames.append(frame)
        self._widen(max(frames) + 1)
        places = to_device([rows, frames], self._table.device)
        self._table[places[0], places[1]] = codes.to(torch.int16)

    def find(self, spans: Sequence[ScheduledSpan]) -> Places:
        """Returns the tokens of a step that have stored codes."""
        places = Places([], [], [])
        for span in spans:
            kept = self._requests.get(span.request_id)
            if kept is None:
                continue
            begin = max(span.start, kept.first)
            end = min(span.start + span.length, kept.first + kept.frames)
            for position in range(begin, end):
                places.tokens.append(span.offset + position - span.start)
                places.rows.append(kept.row)
                places.frames.append(position - kept.first)
        return places

    def read(self, places: Places) -> torch.Tensor:
        """Returns the codes int64 [n, codes] at these places."""
        index = to_device([places.rows, places.frames], self._table.device)
        return self._table[index[0], index[1]].long()

    def _lend(self) -> int:
        if not self._free:
            rows = self._table.shape[0]
            self._table = torch.cat([self._table, torch.zeros_like(self._table)])
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        return self._free.pop()

    def _widen(self, frames: int) -> None:
        while frames > self._table.shape[1]:
            self._table = torch.cat([self._table, torch.zeros_like(self._table)], dim=1)
