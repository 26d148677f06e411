"""How much of an answer's text a user has heard, when the playback of its audio was interrupted. Pure functions.

A voice such as voice/vits says where each word ends in its audio. Talkers do not: they read a token of the text with
each frame, but ahead of what they say (Qwen3-Omni's reads 12.5 a second; English has three to four). For them this is
an estimate: the text is spoken at an even pace. What bounds it is exact: no text has been heard that came after the
audio at this time, because speech is made from text that is there.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Final

CHARS_PER_SECOND: Final = 15.0
"""Pace of English speech; it is used until an answer of the session has shown the pace of its voice."""
_WORD: Final = 24
"""Characters behind which a text without a space is cut within a word, such as Chinese."""


class Spoken:
    """The text and the audio of one answer, as they arrived."""

    def __init__(self) -> None:
        self.text = ""
        self.audio_ms = 0.0
        self.complete = False
        """Whether all audio has arrived."""
        self._ends: list[float] = []
        self._chars: list[int] = []
        """Number of characters that were there when audio up to that end arrived."""
        self._word_ends: list[float] = []
        self._word_chars: list[int] = []
        """Number of characters that have been said at that end of a word."""

    def add_audio(self, milliseconds: float, words: Iterable[tuple[float, int]] = ()) -> None:
        """Note a piece of audio. words: the words that end in it: when, in ms of all audio, and with which character
        of the text."""
        for end_ms, chars in words:
            self._word_ends.append(end_ms)
            self._word_chars.append(chars)
        self.audio_ms += milliseconds
        self._ends.append(self.audio_ms)
        self._chars.append(len(self.text))

    @property
    def pace(self) -> float | None:
        """Characters per second of a complete answer; None if it is not complete, or too short to show it."""
        return len(self.text) / self.audio_ms * 1000 if self.complete and self.audio_ms >= 1000 else None

    def cut(self, audio_end_ms: float, pace: float | None) -> str:
        """Returns the text that was heard up to this time. pace: of earlier answers; see `pace`."""
        if audio_end_ms >= self.audio_ms and self.complete:
            return self.text
        if self._word_ends:
            words = bisect.bisect_right(self._word_ends, audio_end_ms)
            return self.text[: self._word_chars[words - 1]] if words else ""
        whole_ms = self.audio_ms
        if not self.complete:
            whole_ms = max(whole_ms, len(self.text) / (pace or CHARS_PER_SECOND) * 1000)
        spoken = int(len(self.text) * audio_end_ms / whole_ms) if whole_ms else 0
        place = bisect.bisect_left(self._ends, audio_end_ms)
        if place < len(self._chars):
            spoken = min(spoken, self._chars[place])
        return cut_at_word(self.text, spoken)


def cut_at_word(text: str, chars: int) -> str:
    """Returns the whole words among the first characters of a text."""
    if chars >= len(text) or chars <= 0:
        return text[: max(0, chars)]
    if text[chars].isspace():
        return text[:chars]
    last = max(text.rfind(mark, 0, chars) for mark in " \n\t")
    if last < 0:
        return text[:chars] if chars > _WORD else ""
    return text[:last] if chars - last <= _WORD else text[:chars]
