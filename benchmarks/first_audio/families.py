"""What the case needs to know of a family: its samples, its codes a second, how to ask for so much audio."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.first_audio.serving import CODES_PER_SECOND, THINKER_TOKENS, sampling_of

Sampling = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Side:
    """One pipeline file, unchanged or with another mode on every edge."""

    sample: str
    """Of manifests/samples, without its ending."""
    mode: Literal["Full", "Stream"] | None = None
    """None leaves the edges as they are."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models that speak."""

    name: str
    """As `omnipipe tiny-model --family` takes it."""
    sides: Mapping[str, Side]
    codes_per_second: float
    sampling: Callable[[float], Sampling]
    """Seconds of audio -> what makes a pipeline speak so long."""
    at_once: tuple[int, ...]
    ratio: float
    """First audio of Stream over Full's, at most, from 8 s of audio on."""
    notes: tuple[str, ...]


FRAMES_PER_SECOND = 12.5
"""Of Qwen3-Omni's talker: a frame holds one code of each codebook."""


def sample_frames(seconds: float) -> Sampling:
    """Returns what makes a pipeline of Qwen3-Omni speak exactly so long.

    The talker samples as published: a greedy one of random weights repeats itself, and a first code 125 times in a row
    ends the stream.
    """
    return {
        "thinker": {"temperature": 0, "max_tokens": THINKER_TOKENS, "ignore_eos": True},
        "talker": {"temperature": 0.9, "max_tokens": round(seconds * FRAMES_PER_SECOND), "ignore_eos": True},
    }


QWEN25 = Family(
    "qwen2_5_omni",
    {"Full": Side("tiny-omni-full"), "Stream": Side("tiny-omni")},
    CODES_PER_SECOND,
    sampling_of,
    at_once=(1, 4, 8, 16),
    ratio=0.1,
    notes=(
        f"A seeded Qwen2.5-Omni of a few million weights in float32 on CPU: {THINKER_TOKENS} tokens of text, and codec "
        f"tokens for so many seconds of audio, {CODES_PER_SECOND} a second. One OpenMP thread a process.",
        "transformers takes one request after another, and its talker may end before the others' (it has no "
        "ignore_eos).",
        "Error of windows: root mean square of the difference to all tokens at once, against that between two seeds.",
    ),
)
QWEN3 = Family(
    "qwen3_omni",
    {"Full": Side("tiny-qwen3-omni", "Full"), "Stream": Side("tiny-qwen3-omni")},
    FRAMES_PER_SECOND,
    sample_frames,
    at_once=(1, 4, 8),
    ratio=0.05,
    notes=(
        f"A seeded Qwen3-Omni of a few million weights in float32 on CPU: {THINKER_TOKENS} tokens of text, and frames "
        f"of codes for so many seconds of audio, {FRAMES_PER_SECOND} a second. One OpenMP thread a process.",
        "transformers takes one request after another, greedily, and its talker may end before the others' (it has no "
        "ignore_eos).",
    ),
)
