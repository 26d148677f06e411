"""Whether a pipeline keeps what spec.objectives promises, from the histograms of its entry pods. Pure functions.

Quantiles are those of Prometheus' histogram_quantile over the sum of the pods' increases (promql/quantile.go,
bucketQuantile): linear within a bucket.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from omni_operator.scaling.readings import Buckets, Reading
from omni_proto.pipeline.types.scaling import Objectives
from omni_proto.pod_contract import StageMetric

LEAST_ANSWERS: Final = 10
"""Fewer answers within the window say too little: then objectives count as met."""

PROMISES: Final = (
    ("firstAudioSeconds", "first_audio_seconds", StageMetric.PIPELINE_FIRST_AUDIO_SECONDS, "s"),
    ("firstTextSeconds", "first_text_seconds", StageMetric.PIPELINE_FIRST_TEXT_SECONDS, "s"),
    ("realTimeFactor", "real_time_factor", StageMetric.PIPELINE_REAL_TIME_FACTOR, ""),
)
"""Field of the resource, attribute, histogram and unit of the objectives that are upper bounds of a percentile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An objective, and what was measured."""

    field: str
    promised: float
    measured: float
    unit: str
    answers: int

    @property
    def excess(self) -> float:
        """How far the objective is missed: above 1 if it is."""
        if self.field == "continuity":
            return max(1.0, (1.0 - self.measured) / max(1e-3, 1.0 - self.promised)) if self.is_missed else 1.0
        return self.measured / self.promised

    @property
    def is_missed(self) -> bool:
        """Whether the objective is missed."""
        if self.field == "continuity":
            return self.measured < self.promised
        return self.measured > self.promised

    def __str__(self) -> str:
        return f"{self.field} is {self.measured:.3g}{self.unit}, {self.promised:g}{self.unit} is promised"


def quantile(q: float, buckets: Buckets) -> float:
    """Returns the q-quantile (0 to 1) of a histogram; NaN if it is empty or has no bound but the infinite one."""
    bounds = sorted(buckets.items())
    if len(bounds) < 2 or not math.isinf(bounds[-1][0]) or not bounds[-1][1]:
        return math.nan
    rank = q * bounds[-1][1]
    start, below = 0.0, 0.0
    for index, (bound, count) in enumerate(bounds[:-1]):
        if count >= rank:
            if not index and bound <= 0:
                return bound
            return start + (bound - start) * ((rank - below) / (count - below) if count > below else 0.0)
        start, below = bound, count
    return start


def sum_increases(pairs: Iterable[tuple[Reading | None, Reading]], name: str) -> dict[float, float]:
    """Returns by how much a histogram grew, over all pods, from the first to the second reading of each pod. None: the
    pod was not there."""
    total: dict[float, float] = {}
    for before, after in pairs:
        new = after.histograms.get(name, {})
        old = before.histograms.get(name, {}) if before is not None else {}
        if any(new.get(bound, 0.0) < count for bound, count in old.items()):
            old = {}  # the container was restarted in between
        for bound, count in new.items():
            total[bound] = total.get(bound, 0.0) + count - old.get(bound, 0.0)
    return total


def find_objectives(objectives: Objectives, pairs: Sequence[tuple[Reading | None, Reading]]) -> list[Finding]:
    """Returns what was measured for each objective that the window has enough answers for.

    pairs: the readings of each entry pod at the start and at the end of the window.
    """
    findings = []
    for field, attribute, metric, unit in PROMISES:
        promised = getattr(objectives, attribute)
        if promised is None:
            continue
        grown = sum_increases(pairs, metric)
        answers = int(grown.get(math.inf, 0.0))
        if answers >= LEAST_ANSWERS:
            findings.append(Finding(field, promised, quantile(objectives.percentile / 100, grown), unit, answers))
    if objectives.continuity is not None:
        spoken, whole = count_spoken(pairs)
        if spoken >= LEAST_ANSWERS:
            findings.append(Finding("continuity", objectives.continuity, whole / spoken, "", int(spoken)))
    return findings


def count_spoken(pairs: Iterable[tuple[Reading | None, Reading]]) -> tuple[float, float]:
    """Returns the number of answers with audio, and of those without a gap, between the readings of each pod."""
    spoken = whole = 0.0
    for before, after in pairs:
        old = before.spoken if before is not None and before.spoken[0] <= after.spoken[0] else (0.0, 0.0)
        spoken += after.spoken[0] - old[0]
        whole += after.spoken[1] - old[1]
    return spoken, whole


def worst_excess(findings: Iterable[Finding]) -> float:
    """Returns how far the worst objective is missed; 1 if all are met."""
    return max((finding.excess for finding in findings if finding.is_missed), default=1.0)
