"""Compares two answers to one question. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

AUDIO_TOLERANCE = 1e-5
"""Largest difference between two samples that counts as equal: two programs computed the audio in float32."""


@dataclass(frozen=True)
class Answer:
    """One implementation's answer to one question."""

    prompt: Sequence[int]
    text: Sequence[int]
    """Token ids, with the end-of-text token if it was sampled."""
    codec: Sequence[int]
    """Token ids, with the end-of-stream token if it was sampled."""
    audio: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """float32 [samples] at 24 kHz."""


@dataclass(frozen=True)
class Verdict:
    """Where two answers differ. Each token field is the index of the first difference, or None if there is none."""

    prompt: int | None
    text: int | None
    codec: int | None
    audio: float
    """Largest absolute difference between samples; infinite if the lengths differ."""

    @property
    def is_equal(self) -> bool:
        """Whether the tokens are equal and the audio is within the tolerance."""
        return (self.prompt, self.text, self.codec) == (None, None, None) and self.audio <= AUDIO_TOLERANCE

    def describe(self) -> str:
        """Returns "equal", or the first part that differs and where."""
        for name in ("prompt", "text", "codec"):
            if (index := getattr(self, name)) is not None:
                return f"{name} differs at {index}"
        return "equal" if self.is_equal else "audio differs"


def compare(ours: Answer, theirs: Answer) -> Verdict:
    """Returns where two answers differ."""
    return Verdict(
        prompt=first_difference(ours.prompt, theirs.prompt),
        text=first_difference(ours.text, theirs.text),
        codec=first_difference(ours.codec, theirs.codec),
        audio=largest_difference(ours.audio, theirs.audio),
    )


def first_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Returns the first index at which the sequences differ, or None if they are equal.

    If one is a prefix of the other, the index is the length of the shorter one.
    """
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return None if len(left) == len(right) else min(len(left), len(right))


def largest_difference(left: np.ndarray, right: np.ndarray) -> float:
    """Returns the largest absolute difference; infinite if the lengths differ or a value is NaN or infinite."""
    if left.shape != right.shape:
        return float("inf")
    difference = float(np.abs(left.astype(np.float64) - right).max(initial=0.0))
    return difference if np.isfinite(difference) else float("inf")
