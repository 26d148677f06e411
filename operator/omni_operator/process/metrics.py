"""omni_operator_*: the operator's metrics. `python -m tools.observability` writes their list in docs/observability.md.
Label values are bounded: fixed words, RBAC verbs, HTTP statuses, watches, and the existing pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from omni_kube.objects import Manifest, NamespacedName
from omni_operator.scaling.notes import ScaleNotes
from omni_operator.status.conditions import ALWAYS_WRITTEN, CONDITION_TYPES

RESULTS = ("unchanged", "changed", "conflict", "refused", "denied", "error", "gone")
"""refused: the operator does not act on the pipeline, because of its spec or the limit of its namespace. denied: the
namespace's quota or an admission policy refuses one of its objects; the operator is not at fault."""
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


@dataclass(frozen=True, slots=True)
class ConditionSample:
    """A condition of a live pipeline."""

    namespace: str
    pipeline: str
    condition: str
    """Ready, Progressing or Degraded."""
    status: str
    """True, False or Unknown."""
    reason: str


def condition_samples(pipeline: Manifest) -> tuple[ConditionSample, ...]:
    """Returns the conditions of a live pipeline. One that it lacks is Unknown, if it is always written."""
    metadata = pipeline["metadata"]
    found = {item.get("type"): item for item in (pipeline.get("status") or {}).get("conditions") or ()}
    return tuple(
        ConditionSample(
            metadata["namespace"],
            metadata["name"],
            kind,
            str(found.get(kind, {}).get("status", "Unknown")),
            str(found.get(kind, {}).get("reason", "Unknown")),
        )
        for kind in CONDITION_TYPES
        if kind in found or kind in ALWAYS_WRITTEN
    )


@dataclass(frozen=True, slots=True)
class Readings:
    """Values that are read when the metrics are scraped."""

    watch_ages: Callable[[], Mapping[str, float]]
    """Seconds since each watch received anything."""
    conditions: Callable[[], Iterable[ConditionSample]]
    queue_length: Callable[[], int]
    """Pipelines that wait for a reconcile."""
    longest_due_s: Callable[[], float]
    """The longest time for which a pipeline has waited for a due reconcile, or its reconcile has been running."""
    scale: Callable[[], Iterable[tuple[NamespacedName, ScaleNotes]]] = tuple
    """What scaling found out, by pipeline."""


class Metrics:
    """All metrics of one process, in their own registry."""

    def __init__(self, version: str = "") -> None:
        disable_created_metrics()  # otherwise each counter has a second series, which nothing reads
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("omni_operator", "The operator's version.", registry=self.registry).info({"version": version})
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, unit="seconds", buckets=_BUCKETS, registry=self.registry)
        self._duration = histogram(
            "omni_operator_reconcile_duration", "Duration of one reconcile of one pipeline, writes included."
        )
        self._reconciles = counter(
            "omni_operator_reconcile", f"Reconciles of pipelines, by result: {', '.join(RESULTS)}.", ["result"]
        )
        for result in RESULTS:
            self._reconciles.labels(result)
        self._calls = counter(
            "omni_operator_api_calls",
            "Calls to the API server by RBAC verb and HTTP status (or timeout, unreachable).",
            ["verb", "code"],
        )
        self._call_duration = histogram(
            "omni_operator_api_call_duration",
            "Time until the API server answered a call or the call failed, by RBAC verb. For a watch, the time until "
            "it started.",
            ["verb"],
        )
        self._noops = counter(
            "omni_operator_noop_applies",
            "Applies that changed nothing. The operator compares before it writes, so each one shows a fault in the "
            "comparison.",
        )
        self._status_writes = counter("omni_operator_status_writes", "Writes of a pipeline's status.")
        self._leader = Gauge("omni_operator_leader", "1 while this process may write.", registry=self.registry)

    def count_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call to the API server."""
        self._calls.labels(verb, code).inc()
        self._call_duration.labels(verb).observe(seconds)

    def observe_reconcile(self, result: str, seconds: float) -> None:
        """Record one reconcile of one pipeline."""
        self._reconciles.labels(result).inc()
        self._duration.observe(seconds)

    def count_noop_apply(self) -> None:
        """Count an apply that did not change the resource version."""
        self._noops.inc()

    def count_status_write(self) -> None:
        """Count a write of a status."""
        self._status_writes.inc()

    def set_leader(self, leader: bool) -> None:
        """Record whether this process may write."""
        self._leader.set(leader)

    def add_readings(self, readings: Readings) -> None:
        """Add values that are read when the metrics are scraped."""
        self.registry.register(_Gauges(readings))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Returns all metrics in the format that the Accept header prefers, and the content type."""
        encode, content_type = choose_encoder(accept)
        return bytes(encode(self.registry)), str(content_type)


class _Gauges(Collector):  # type: ignore[misc]  # prometheus_client is untyped here
    def __init__(self, readings: Readings) -> None:
        self._readings = readings

    def collect(self) -> Iterable[Metric]:
        readings = self._readings
        ages = GaugeMetricFamily(
            "omni_operator_watch_age_seconds",
            "Time since a watch last received anything.",
            labels=["watch"],
            unit="seconds",
        )
        for watch, age_s in readings.watch_ages().items():
            ages.add_metric([watch], age_s)
        yield ages
        yield from _collect_pipelines(list(readings.conditions()))
        scale = list(readings.scale())
        yield _collect_desired(scale)
        yield from _collect_budgets(scale)
        yield GaugeMetricFamily(
            "omni_operator_queued_pipelines", "Pipelines that wait for a reconcile.", value=readings.queue_length()
        )
        yield GaugeMetricFamily(
            "omni_operator_longest_due_seconds",
            "Longest time for which a pipeline has waited for a due reconcile, or its reconcile has been running.",
            value=readings.longest_due_s(),
            unit="seconds",
        )


def _collect_desired(scale: Iterable[tuple[NamespacedName, ScaleNotes]]) -> Metric:
    desired = GaugeMetricFamily(
        "omni_operator_stage_desired_replicas",
        "Pods that the load of a stage with scaling needs, before bounds and behavior; for autoscalers, too.",
        labels=["pipeline_namespace", "pipeline", "stage"],
    )
    for key, notes in scale:
        for stage, note in notes.stages.items():
            if note.desired is not None:
                desired.add_metric([key.namespace, key.name, stage], note.desired)
    return desired


def _collect_budgets(scale: Iterable[tuple[NamespacedName, ScaleNotes]]) -> Iterable[Metric]:
    labels = ["pipeline_namespace", "pipeline", "objective"]
    answers = CounterMetricFamily(
        "omni_operator_objective_answers", "Answers that an objective of a pipeline is about.", labels=labels
    )
    misses = CounterMetricFamily(
        "omni_operator_objective_misses",
        "Answers that missed an objective, counted between the bounds of the stage's histogram in proportion.",
        labels=labels,
    )
    allowed = GaugeMetricFamily(
        "omni_operator_objective_allowed_ratio",
        "Share of answers that may miss an objective: 1 - percentile / 100, or 1 - continuity.",
        labels=labels,
        unit="ratio",
    )
    for key, notes in scale:
        for objective, budget in notes.budgets.items():
            names = [key.namespace, key.name, objective]
            answers.add_metric(names, budget.answers)
            misses.add_metric(names, budget.misses)
            allowed.add_metric(names, budget.allowed)
    return answers, misses, allowed


def _collect_pipelines(samples: list[ConditionSample]) -> Iterable[Metric]:
    counts = dict.fromkeys(("True", "False", "Unknown"), 0)
    # Not `namespace`: Prometheus sets that label to the operator's own namespace when it scrapes.
    labels = ["pipeline_namespace", "pipeline", "condition", "reason"]
    conditions = GaugeMetricFamily(
        "omni_operator_pipeline_condition", "1 if the pipeline's condition is True, else 0.", labels=labels
    )
    for sample in samples:
        names = [sample.namespace, sample.pipeline, sample.condition, sample.reason]
        conditions.add_metric(names, float(sample.status == "True"))
        if sample.condition == "Ready":
            counts[sample.status] = counts.get(sample.status, 0) + 1
    pipelines = GaugeMetricFamily("omni_operator_pipelines", "Pipelines by Ready condition.", labels=["ready"])
    for ready, count in counts.items():
        pipelines.add_metric([ready], count)
    yield pipelines
    yield conditions
