"""Keeps stop strings out of speech: a reply is spoken only as far as its text is returned. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final

from omni_stage.models.component import EngineStep

_BYTES_OF_A_CHARACTER: Final = 4


class SpokenTokens:
    """Counts the tokens of one request's reply that may be spoken.

    vLLM cuts a stop string from the text, but the string's tokens have been sampled by then. So the newest tokens are
    withheld: as many as the longest stop string may have.
    """

    def __init__(self, stops: Sequence[str] | None, decode: Callable[[Sequence[int]], str]) -> None:
        """`stops`: the request's stop strings; `decode` returns the text of token ids, without special tokens."""
        self._stops = frozenset(stops or ())
        self._decode = decode
        # A token of text has at least one byte, so a stop string has at most as many tokens as bytes.
        self._withheld = max((len(stop.encode()) for stop in self._stops), default=0)
        self._token_ids: list[int] = []
        self._length = 0

    def count(self, step: EngineStep) -> int:
        """Add a step. Returns how many of the reply's tokens, from its first on, may be spoken by now."""
        if not self._stops:
            self._length += len(step.token_ids)
            return self._length
        self._token_ids.extend(step.token_ids)
        self._length += len(step.text)
        tokens = len(self._token_ids)
        if step.finish_reason is None:
            return max(0, tokens - self._withheld)
        if step.stop_reason not in self._stops:
            return tokens
        first = max(0, tokens - self._withheld)
        # By halving, because each decoding takes as long as the reply.
        long_enough = bisect_left(range(first, tokens), self._length, key=lambda count: len(self._text(count)))
        # The text of a part of a character may be longer than the character.
        near = max(first, first + long_enough - _BYTES_OF_A_CHARACTER)
        return next((count for count in range(near, tokens) if self._covers_text(count)), tokens)

    def _text(self, count: int) -> str:
        return self._decode(self._token_ids[:count])

    def _covers_text(self, count: int) -> bool:
        text = self._text(count)
        # The replacement character stands for a character whose last bytes are in the next token.
        return len(text) >= self._length and not text.endswith("\N{REPLACEMENT CHARACTER}")
