"""What the pods of a pipeline report, from their metrics, and what it says about the time between two readings.

Only counters and histograms are read, so a reading says what happened since the one before, however far apart they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from omni_operator.scaling.decision import StageLoad
from omni_proto.pod_contract import StageMetric

_ENGINE: Final = (
    StageMetric.ENGINE_RUNNING_SECONDS,
    StageMetric.ENGINE_WAITING_SECONDS,
    StageMetric.ENGINE_LIMIT_REQUESTS,
)
HISTOGRAMS: Final = (
    StageMetric.PIPELINE_FIRST_AUDIO_SECONDS,
    StageMetric.PIPELINE_FIRST_TEXT_SECONDS,
    StageMetric.PIPELINE_REAL_TIME_FACTOR,
)
"""Histograms that objectives are about."""
_WANTED: Final = tuple(
    name.encode()
    for name in (
        *_ENGINE,
        StageMetric.INFLIGHT_REQUESTS,
        StageMetric.REQUESTS,
        *(f"{name}_bucket" for name in HISTOGRAMS),
        StageMetric.PIPELINE_SPOKEN_ANSWERS,
    )
)

Buckets = Mapping[float, float]
"""Number of observations up to and including each bound; the last bound is infinite."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one pod reported."""

    at: float
    """When, in seconds of a monotonic clock."""
    ran_s: float
    waited_s: float
    limit: float
    histograms: Mapping[str, Buckets] = field(default_factory=dict)
    spoken: tuple[float, float] = (0.0, 0.0)
    """Answers with audio, and those without a gap."""
    in_flight: float | None = None
    """Calls in progress, also those that the engine has not got yet; None if the pod does not say."""
    answered: float = 0.0
    """Calls that ended with OK."""


def parse_reading(page: bytes, at: float) -> Reading | None:
    """Returns the reading in a page of metrics, in Prometheus' text format. None if the page has none, or a figure is
    not a finite number: another server may answer there."""
    lines = [line for line in page.split(b"\n") if line.startswith(_WANTED)]
    try:
        text = b"\n".join(lines).decode() + "\n"
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    except ValueError:
        return None
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    if any(name not in values for name in _ENGINE) or not all(map(math.isfinite, (s.value for s in samples))):
        return None
    histograms: dict[str, dict[float, float]] = {}
    spoken = dict.fromkeys(("true", "false"), 0.0)
    answered = sum(one.value for one in samples if one.name == StageMetric.REQUESTS and one.labels.get("code") == "OK")
    for sample in samples:
        if "le" in sample.labels:
            bounds = histograms.setdefault(sample.name.removesuffix("_bucket"), {})
            bounds[float(sample.labels["le"])] = sample.value
        elif sample.labels.get("continuous") in spoken:
            spoken[sample.labels["continuous"]] = sample.value
    ran_s, waited_s, limit = (values[name] for name in _ENGINE)
    in_flight = values.get(StageMetric.INFLIGHT_REQUESTS)
    return Reading(at, ran_s, waited_s, limit, histograms, (sum(spoken.values()), spoken["true"]), in_flight, answered)


def find_pairs(rows_of: Iterable[Sequence[Reading]], since: float) -> list[tuple[Reading, Reading]]:
    """Returns the last two readings of each pod that was last read at `since` or later, of rows with the oldest first.

    What a silent pod said long ago is not its load: it counts as the others do (load_between).
    """
    return [(rows[-2], rows[-1]) for rows in rows_of if len(rows) > 1 and rows[-1].at >= since]


def load_between(pairs: Iterable[tuple[Reading, Reading]], pods: int) -> StageLoad | None:
    """Returns the load of a stage, from two readings of each of its pods that has two. pods: number of its ready pods:
    those without readings count as the mean of the others. None without a pair."""
    running = waiting = limit = arrivals = answered = 0.0
    count = 0
    for before, after in pairs:
        passed = after.at - before.at
        if passed <= 0 or after.ran_s < before.ran_s or after.waited_s < before.waited_s:
            continue  # the container was restarted in between
        running += (after.ran_s - before.ran_s) / passed
        waiting += (after.waited_s - before.waited_s) / passed
        limit += after.limit
        answered += (after.answered - before.answered) / passed
        arrivals += (after.answered + (after.in_flight or 0.0) - before.answered - (before.in_flight or 0.0)) / passed
        count += 1
    if not count:
        return None
    scale = pods / count
    return StageLoad(running * scale, waiting * scale, limit / count, arrivals * scale, answered * scale)
