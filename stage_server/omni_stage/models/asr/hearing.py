"""One request of asr/whisper: the runs of the engine that it takes, and the text that comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from omni_stage.models.asr.request import Wish
from omni_stage.models.asr.silence import LoudFrames
from omni_stage.models.asr.vocabulary import RATE_HZ, WhisperTokens
from omni_stage.models.asr.windows import WINDOW_S, Segment, WindowReader
from omni_stage.models.component import EngineInput, EngineStep, FinishReason, SpokenSegment, StageStep
from omni_stage.models.shared.text.edge import text_rows

MAX_TEXT_BYTES: Final = 512 << 10
"""Maximum bytes of a transcript: nine hours of fast speech in English."""
_LAST_WINDOW_BYTES: Final = 256 << 10
"""More than one window can add: at most 448 tokens, none of which has 500 bytes."""
_LANGUAGE_STEP: Final = {"max_tokens": 1, "min_tokens": 0, "temperature": 0.0}


@dataclass(frozen=True, slots=True)
class Listener:
    """What the requests of one checkpoint share."""

    tokens: WhisperTokens
    decode: Callable[[Sequence[int]], str]
    """Returns the text of tokens."""


class Hearing:
    """The emitter of one request, and the source of its runs (RunsAgain).

    If the language is not given, the first run names it. Then each run hears one window. Audio that fits a window, and
    whose times are not asked for, is written without timestamps, so that its text can be sent token by token. Otherwise
    the text is sent as soon as a segment is complete, because the end of a window may be heard again (windows.py).
    """

    def __init__(
        self,
        listener: Listener,
        samples: np.ndarray,
        wish: Wish,
        previous: Sequence[int],
        *,
        max_tokens: int | None,
        publishes: bool,
    ) -> None:
        """samples: float32 at RATE_HZ. previous: tokens of the prompt's text. max_tokens: of the whole request.

        publishes: whether another stage reads the text.
        """
        self._tokens, self._decode = listener.tokens, listener.decode
        self._samples, self._wish, self._previous = samples, wish, previous
        self._loud = LoudFrames.of(samples, RATE_HZ)
        self._end_s = self._loud.end_s()
        self._language = wish.language
        self._left = max_tokens
        self._publishes, self._text_bytes = publishes, 0
        self._start_s = self._loud.next_start(0.0)
        self._timed = wish.timed or (self._start_s is not None and self._end_s - self._start_s > WINDOW_S)
        self._reader: WindowReader | None = None
        self._names_language = False
        self._is_first = True
        self._was_cut = False

    def next_input(self) -> EngineInput:
        """See RunsAgain. Also returns the input of the first run."""
        if self._start_s is None:
            return EngineInput(prompt={}, finished=FinishReason.EMPTY_INPUT)
        first = round(self._start_s * RATE_HZ)
        window = self._samples[first : first + round(WINDOW_S * RATE_HZ)]
        self._names_language = bool(self._tokens.languages) and self._language is None
        if self._names_language:
            return self._hear(window, [self._tokens.start], _LANGUAGE_STEP)
        ids = self._tokens.prompt(self._language, self._wish.task, self._previous, timed=self._timed)
        room = self._tokens.positions - len(ids)
        self._reader = WindowReader(
            end_id=self._tokens.end,
            first_timestamp_id=self._tokens.first_timestamp,
            window_s=min(window.size / RATE_HZ, self._end_s - self._start_s),
        )
        return self._hear(window, ids, {"max_tokens": room if self._left is None else min(room, self._left)})

    def _hear(self, window: np.ndarray, ids: list[int], sampling: dict[str, Any]) -> EngineInput:
        prompt = {"prompt_token_ids": ids, "multi_modal_data": {"audio": [(window, RATE_HZ)]}}
        return EngineInput(prompt=prompt, sampling=sampling)

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step of the running run. Only the request's last step has a finish_reason."""
        made = self._read(step)
        if made.finish_reason is not None:
            made.language = self._tokens.language_of(self._language)
        if made.text:
            self._text_bytes += len(made.text.encode())
            if self._publishes:
                made.tensors = text_rows(made.text)
        return made

    def _read(self, step: EngineStep) -> StageStep:
        made = StageStep.of(step)
        made.finish_reason, made.stop_reason = None, ""
        if self._names_language:
            self._language = next(iter(step.token_ids), None)
            made.text, made.token_ids = "", []
            return made
        if not self._is_first:
            made.prompt_token_ids = None  # the same in every window; counted once
        self._is_first = self._is_first and step.finish_reason is None
        if self._left is not None:
            self._left -= len(step.token_ids)
        if not self._timed:
            made.finish_reason, made.stop_reason = step.finish_reason, step.stop_reason
            return made
        made.text, made.segments = "", ()
        if self._reader is not None:
            closed = self._reader.add(step.token_ids)
            start_s = self._start_s or 0.0
            if step.finish_reason is not None:
                rest, advance_s = self._reader.end()
                closed += rest
                made.finish_reason = self._advance(advance_s, step.finish_reason)
            made.segments = [self._place(one, start_s) for one in closed if one.token_ids]
            made.text = "".join(one.text for one in made.segments)
        return made

    def _place(self, segment: Segment, window_s: float) -> SpokenSegment:
        return SpokenSegment(self._decode(segment.token_ids), window_s + segment.start_s, window_s + segment.end_s)

    def _advance(self, seconds: float, reason: FinishReason) -> FinishReason | None:
        """Move to the next window. Returns how the request ends; None if there is a next window."""
        start_s = (self._start_s or 0.0) + seconds
        if reason is FinishReason.LENGTH:
            if self._left is not None and self._left <= 0:
                return reason
            # Without a pair of timestamps, nobody knows where the words that are missing would begin.
            self._was_cut = self._was_cut or not (self._reader and self._reader.has_pair)
        self._start_s = self._loud.next_start(start_s) if start_s < self._end_s else None
        if self._start_s is not None:
            return FinishReason.LENGTH if self._text_bytes > MAX_TEXT_BYTES - _LAST_WINDOW_BYTES else None
        return FinishReason.LENGTH if self._was_cut else FinishReason.STOP
