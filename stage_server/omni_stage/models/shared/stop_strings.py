"""Keeps stop strings out of speech: a reply is spoken only as far as its text is returned. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from omni_stage.models.component import EngineStep


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
        return next((count for count in range(first, tokens) if self._covers_text(count)), tokens)

    def _covers_text(self, count: int) -> bool:
        text = self._decode(self._token_ids[:count])
        # The replacement character stands for a character whose last bytes are in the next token.
        return len(text) >= self._length and not text.endswith("\N{REPLACEMENT CHARACTER}")
