"""How many of the misses that spec.objectives allows were used: counters for burn-rate alerts. Pure functions.

An objective allows a share of misses: with percentile 95, 5 % of the answers may be later than promised. Prometheus
cannot count the answers above an arbitrary bound, because a histogram has only its own bounds; so they are counted
here, between two bounds in proportion, as its histogram_fraction does (promql/quantile.go, bucketFraction).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from omni_operator.scaling.objectives import PROMISES, count_spoken, sum_increases
from omni_operator.scaling.readings import Buckets, Reading
from omni_proto.pipeline.types.scaling import Objectives

LEAST_BUDGET: Final = 0.001
"""Smallest share of misses: without any, the first miss would use up an infinite part of the budget."""


@dataclass(slots=True)
class Budget:
    """What an objective allows, and what happened since this process began to count."""

    allowed: float
    """Share of answers that may miss the objective."""
    answers: float = 0.0
    misses: float = 0.0


def count_above(bound: float, buckets: Buckets) -> float:
    """Returns how many observations are above a bound; 0 above the last finite bound, where nothing is known."""
    bounds = sorted(buckets.items())
    total = bounds[-1][1] if bounds else 0.0
    start, below = 0.0, 0.0
    for end, count in bounds:
        if bound < end:
            if math.isinf(end):
                # Those in the last bucket are above its lower bound; the question is only sensible at that bound.
                return total - below if bound <= start else 0.0
            return total - (below + (count - below) * (bound - start) / (end - start))
        start, below = end, count
    return 0.0


def spend(
    budgets: Mapping[str, Budget], objectives: Objectives, pairs: Sequence[tuple[Reading, Reading]]
) -> dict[str, Budget]:
    """Returns the budgets by field of the resource, with what happened between two readings of each entry pod.

    budgets: those returned before. One whose objective was taken away ends; another promise begins a new count.
    """
    found = {}
    for field, allowed, answers, misses in _counts(objectives, pairs):
        before = budgets.get(field)
        if before is None or before.allowed != allowed:
            before = Budget(allowed)
        found[field] = Budget(allowed, before.answers + answers, before.misses + misses)
    return found


def _counts(
    objectives: Objectives, pairs: Sequence[tuple[Reading, Reading]]
) -> Iterable[tuple[str, float, float, float]]:
    allowed = max(LEAST_BUDGET, round(1.0 - objectives.percentile / 100, 6))
    for field, attribute, metric, _ in PROMISES:
        promised = getattr(objectives, attribute)
        if promised is not None:
            grown = sum_increases(pairs, metric)
            yield field, allowed, grown.get(math.inf, 0.0), count_above(promised, grown)
    if objectives.continuity is not None:
        spoken, whole = count_spoken(pairs)
        yield "continuity", max(LEAST_BUDGET, round(1.0 - objectives.continuity, 6)), spoken, spoken - whole
