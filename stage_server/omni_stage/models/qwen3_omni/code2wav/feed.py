"""code2wav's streamed input: collects frames of codes into chunks as they arrive."""

from __future__ import annotations

from collections.abc import Callable

import torch

from omni_stage.models.component import EdgeRows, EngineInput, FinishReason, InputPart

MAX_CHUNK_FRAMES = 100
"""Maximum number of frames in a chunk: 8 s of audio. This bounds how long a request with many waiting frames delays the
other requests of its step."""


class CodesFeed:
    """An InputFeed of chunks. A chunk has all waiting frames, at least one and at most MAX_CHUNK_FRAMES."""

    def __init__(
        self, check: Callable[[torch.Tensor, int], None], build: Callable[[torch.Tensor, int, bool], EngineInput]
    ) -> None:
        """`check` refuses frames without audio, and too many frames. Its second argument is the number of earlier
        frames.

        `build` makes the engine's input from frames, the index of the first one, and whether these are the last frames.
        """
        self._check = check
        self._build = build
        self._waiting: list[torch.Tensor] = []
        self._taken = 0
        self._came = 0
        self._ended = False

    def add(self, rows: EdgeRows) -> None:
        """Add frames int64 [n, groups]. Raises InvalidTensorError."""
        codes = rows.tensors.get("codes")
        if codes is not None and codes.shape[0]:
            self._check(codes, self._came)
            self._waiting.append(codes)
            self._came += codes.shape[0]
        self._ended = self._ended or rows.ended or "codes" in rows.complete

    def next_part(self) -> InputPart | None:
        """Returns the next chunk; None if no frame waits.

        If the stream ends when no frame waits, the last part has no input and finishes with STOP, or with EMPTY_INPUT
        if there were no frames at all.
        """
        if self._taken == self._came:
            # The end often arrives after the last frame, because frames do not wait for the end.
            return None if not self._ended else self._end()
        waiting = torch.cat(self._waiting)
        chunk, rest = waiting[:MAX_CHUNK_FRAMES], waiting[MAX_CHUNK_FRAMES:]
        self._waiting = [rest] if rest.shape[0] else []
        first, self._taken = self._taken, self._taken + chunk.shape[0]
        last = self._ended and not self._waiting
        return InputPart(self._build(chunk, first, last), last=last)

    def _end(self) -> InputPart:
        reason = FinishReason.STOP if self._came else FinishReason.EMPTY_INPUT
        return InputPart(EngineInput(prompt={}, finished=reason), last=True)
