"""Compares our answers with those that others published for the 7B model. Pure; golden.json has the figures.

Audio: the codes are given, so only token2wav is checked. Every sample depends on the start noise. transformers draws
the noise on the model's device, which the fixture does not name. Our stages draw it on the CPU. So if the audio has the
right length and loudness but other samples, the verdict is OTHER_NOISE, which is neither a pass nor a defect.

Text: a question about an audio file and an image, both on the internet. No check of `make gpu` asks it yet.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "golden.json"
# The tolerances of transformers' own test.
_SAMPLE_RTOL, _SAMPLE_ATOL, _RMS_RTOL = 1e-3, 5e-3, 1e-2
_LOUDNESS_FACTOR = 1.25
"""Largest factor between two loudnesses that different noise can explain. For comparison: wrong rotary embeddings
halved the loudness (huggingface/transformers #47328)."""


class Verdict(enum.Enum):
    """Whether an answer agrees with the published one."""

    PASS = "pass"  # noqa: S105 - no password
    FAIL = "fail"
    OTHER_NOISE = "other noise"


@dataclass(frozen=True)
class Finding:
    """A verdict with what was measured."""

    verdict: Verdict
    value: str
    limit: str


@dataclass(frozen=True)
class GoldenAudio:
    """Codec tokens, and facts about the audio that token2wav makes from them."""

    source: str
    model: str
    voice: str
    seed: int
    codes: tuple[int, ...]
    samples: int
    """Number of samples, at 24 kHz."""
    rms: float
    stride: int
    last_strided: tuple[float, ...]
    """The last values of the series of every `stride`-th sample, which starts with the first sample."""


@dataclass(frozen=True)
class GoldenText:
    """A question and the answers that the published model gave to it on several devices."""

    source: str
    model: str
    audio_url: str
    image_url: str
    question: str
    system: str
    max_tokens: int
    prompt_begins: tuple[int, ...]
    """Token ids at the beginning of the prompt. The prompt has the audio, then the image, then the question."""
    answers: tuple[str, ...]


@lru_cache
def golden_audio() -> GoldenAudio:
    """Returns the audio fixture."""
    facts = _read("audio")
    runs = facts.pop("codes_by_run")
    codes = tuple(itertools.chain.from_iterable([code] * count for code, count in runs))
    return GoldenAudio(**{**facts, "codes": codes, "last_strided": tuple(facts["last_strided"])})


@lru_cache
def golden_text() -> GoldenText:
    """Returns the question and its answers."""
    facts = _read("text")
    return GoldenText(**{**facts, "prompt_begins": tuple(facts["prompt_begins"]), "answers": tuple(facts["answers"])})


def judge_audio(samples: Sequence[float], golden: GoldenAudio) -> Finding:
    """Returns the verdict on audio that token2wav made from golden.codes. `samples`: at 24 kHz, in [-1, 1]."""
    values = [float(sample) for sample in samples]
    if len(values) != golden.samples:
        return Finding(Verdict.FAIL, f"{len(values)} samples", f"{golden.samples} samples")
    rms = math.sqrt(math.fsum(value * value for value in values) / len(values))
    value, limit = f"rms {rms:.5f}", f"rms {golden.rms:.5f}"
    if not math.isfinite(rms) or not 1 / _LOUDNESS_FACTOR <= rms / golden.rms <= _LOUDNESS_FACTOR:
        return Finding(Verdict.FAIL, value, f"{limit} within a factor of {_LOUDNESS_FACTOR}")
    tail = values[:: golden.stride][-len(golden.last_strided) :]
    largest = max(abs(ours - theirs) for ours, theirs in zip(tail, golden.last_strided, strict=True))
    is_near = all(
        abs(ours - theirs) <= _SAMPLE_ATOL + _SAMPLE_RTOL * abs(theirs)
        for ours, theirs in zip(tail, golden.last_strided, strict=True)
    )
    is_equal = is_near and abs(rms - golden.rms) <= _RMS_RTOL * golden.rms
    verdict = Verdict.PASS if is_equal else Verdict.OTHER_NOISE
    return Finding(verdict, f"{value}, samples off by {largest:.4f}", f"{limit}, samples off by {_SAMPLE_ATOL}")


def judge_text(text: str, golden: GoldenText) -> Finding:
    """Returns the verdict on the greedy answer to golden.question. A final full stop does not count."""
    answer = text.strip().rstrip(".")
    is_known = any(answer == known.rstrip(".") for known in golden.answers)
    verdict = Verdict.PASS if is_known else Verdict.FAIL
    return Finding(verdict, repr(text.strip()), f"one of {len(golden.answers)} published answers")


def find_missing_media(audio: Path | None, image: Path | None, golden: GoldenText) -> str | None:
    """Returns which files of the question are missing, as a reason to skip a text check; None if both exist."""
    wanted = (("audio", audio, golden.audio_url), ("image", image, golden.image_url))
    missing = [f"{name} ({url})" for name, path, url in wanted if path is None or not path.is_file()]
    return f"no file with the {' and the '.join(missing)}; fetch it and give its path" if missing else None


def _read(part: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))[part]
    return facts
