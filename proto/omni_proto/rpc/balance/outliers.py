"""When a pod is left out for a while because it fails or is slow, and for how long. Pure.

The model is Envoy's outlier detection: consecutive failures eject a pod; an ejection lasts a base time, times the
number of the pod's ejections, up to a maximum; only a part of the pods may be ejected at a time. Envoy has no rule
for slowness and readmits a pod wholly; here a pod that is much slower than its peers is ejected too, and one call
probes a pod before it is readmitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

FAILURES: Final = 3
"""Consecutive failures that eject a pod. Envoy's default is 5, but a request to a model costs more than one of HTTP."""
BASE_S: Final = 30.0
MAX_S: Final = 300.0
"""Envoy's defaults: consecutive_5xx 5, base_ejection_time 30 s, max_ejection_time 300 s."""
SLOW_RATIO: Final = 4.0
"""A pod is slow if its answers take this many times longer than those of its peers."""
SLOW_MIN_S: Final = 0.02
"""A smaller difference, in seconds for each message of an answer, is noise of a small engine."""
SAMPLES: Final = 3
"""Samples after which a pod's pace is judged. An answer gives one after EARLY messages, and one at its end."""
EARLY: Final = 4
"""Messages of an answer after which it says something of its pod's pace. A slow pod is found before an answer ends."""
MAX_EJECTED: Final = 0.5
"""Largest share of the pods that may be ejected at a time."""


def ejection_s(ejections: int) -> float:
    """Returns how many seconds a pod's ejection lasts; `ejections` counts this one."""
    return min(MAX_S, BASE_S * ejections)


def may_eject(ejected: int, pods: int) -> bool:
    """Returns whether one more of the pods may be ejected, if so many of them are."""
    return ejected + 1 <= pods * MAX_EJECTED


def is_slow(pace: float, others: Sequence[float]) -> bool:
    """Returns whether a pod is slow; paces are seconds a message, `others` those of its peers that have enough
    answers."""
    if not others:
        return False
    usual = median(others)
    return pace > SLOW_RATIO * usual and pace - usual > SLOW_MIN_S


def relative_pace(pace: float, usual: float) -> float:
    """Returns how much longer than usual a pod takes, for weighing it. Differences up to a quarter are noise."""
    ratio = pace / usual if usual > 0 else 1.0
    return 1.0 if 0.8 <= ratio <= 1.25 else min(SLOW_RATIO, max(1 / SLOW_RATIO, ratio))
