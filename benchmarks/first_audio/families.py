"""What the case needs to know about a family: its sample pipelines, its pace, the sampling for a length of audio."""

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
    """Name of the file in manifests/samples, without .yaml."""
    mode: Literal["Full", "Stream"] | None = None
    """Mode of every edge; None keeps the modes of the file."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models that speak."""

    name: str
    """The name that `omnipipe tiny-model --family` takes."""
    sides: Mapping[str, Side]
    codes_per_second: float
    """Codec tokens per second of audio; for Qwen3-Omni, frames per second."""
    sampling: Callable[[float], Sampling]
    """Returns the sampling that makes a pipeline speak for this many seconds."""
    at_once: tuple[int, ...]
    ratio: float
    """Goal: the largest ratio of first audio with Stream to first audio with Full, for at least 8 s of audio."""
    speed: float | None
    """Goal: the smallest ratio of audio per second with Stream to that with Full, for 8 requests at once of at least 8
    s of audio; None if there is no such goal."""
    notes: tuple[str, ...]


FRAMES_PER_SECOND = 12.5
"""Frames that Qwen3-Omni's talker makes for a second of audio. A frame has one code of each codebook."""


def sample_frames(seconds: float) -> Sampling:
    """Returns the sampling that makes a pipeline of Qwen3-Omni speak for `seconds`, rounded to whole frames.

    The talker samples with the published settings. With random weights, greedy decoding would repeat the same frame.
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
    speed=1.5,
    notes=(
        f"A seeded Qwen2.5-Omni of a few million weights in float32 on CPU: {THINKER_TOKENS} tokens of text, and "
        f"{CODES_PER_SECOND} codec tokens per second of audio. One OpenMP thread per process.",
        "transformers answers one request after another, so it is measured with one at a time. Its talker may end "
        "earlier than those of the other sides (it has no ignore_eos).",
        "Error of windows: root mean square of the difference between audio from windows and audio from one forward "
        "over all tokens, divided by that of the difference between two seeds.",
    ),
)
QWEN3 = Family(
    "qwen3_omni",
    {"Full": Side("tiny-qwen3-omni", "Full"), "Stream": Side("tiny-qwen3-omni")},
    FRAMES_PER_SECOND,
    sample_frames,
    at_once=(1, 4, 8),
    ratio=0.05,
    speed=None,
    notes=(
        f"A seeded Qwen3-Omni of a few million weights in float32 on CPU: {THINKER_TOKENS} tokens of text, and "
        f"{FRAMES_PER_SECOND} frames of codes per second of audio. One OpenMP thread per process.",
        "transformers answers one request after another, greedily, so it is measured with one at a time. Its "
        "talker may end earlier than those of the other sides (it has no ignore_eos).",
    ),
)
