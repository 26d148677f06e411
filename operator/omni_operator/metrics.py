"""Metrics of the operator, as Prometheus reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    """All counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        disable_created_metrics()  # a series of its own for each counter, which nobody reads
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._duration = Histogram(
            "omni_operator_reconcile_duration_seconds",
            "Time of one look at one pipeline, writes included.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._reconciles = Counter(
            "omni_operator_reconcile",
            "Looks at pipelines, by how they ended: unchanged, changed, conflict, error or gone.",
            ["result"],
            registry=self.registry,
        )
        self._calls = Counter(
            "omni_operator_api_calls",
            "Calls to the API server by RBAC verb and HTTP status (or timeout, unreachable).",
            ["verb", "code"],
            registry=self.registry,
        )
        self._noops = Counter(
            "omni_operator_noop_applies",
            "Applies that changed nothing: each is a fault of the comparison.",
            registry=self.registry,
        )
        self._status_writes = Counter(
            "omni_operator_status_writes", "Writes of a pipeline's status.", registry=self.registry
        )
        self._leader = Gauge("omni_operator_leader", "1 while this process may write.", registry=self.registry)

    def count_call(self, verb: str, code: str) -> None:
        """One call to the API server."""
        self._calls.labels(verb, code).inc()

    def observe_reconcile(self, result: str, seconds: float) -> None:
        """One look at one pipeline."""
        self._reconciles.labels(result).inc()
        self._duration.observe(seconds)

    def count_noop_apply(self) -> None:
        """An apply that did not change the resource version."""
        self._noops.inc()

    def count_status_write(self) -> None:
        """A status was written."""
        self._status_writes.inc()

    def set_leader(self, leader: bool) -> None:
        """Whether this process may write."""
        self._leader.set(leader)

    def add_gauges(
        self,
        watch_ages: Callable[[], Mapping[str, float]],
        pipelines: Callable[[], Mapping[str, int]],
        queue_length: Callable[[], int],
    ) -> None:
        """Read these when the metrics are asked for: seconds by watch, pipelines by their Ready condition, keys that
        wait."""
        self.registry.register(_Gauges(watch_ages, pipelines, queue_length))

    def render(self) -> bytes:
        """All metrics as text."""
        return bytes(generate_latest(self.registry))


class _Gauges(Collector):  # type: ignore[misc]  # prometheus_client is untyped here
    def __init__(
        self,
        watch_ages: Callable[[], Mapping[str, float]],
        pipelines: Callable[[], Mapping[str, int]],
        queue_length: Callable[[], int],
    ) -> None:
        self._watch_ages = watch_ages
        self._pipelines = pipelines
        self._queue_length = queue_length

    def collect(self) -> Iterable[Metric]:
        ages = GaugeMetricFamily(
            "omni_operator_watch_age_seconds", "Time since a watch last heard anything.", labels=["watch"]
        )
        for watch, age_s in self._watch_ages().items():
            ages.add_metric([watch], age_s)
        yield ages
        pipelines = GaugeMetricFamily("omni_operator_pipelines", "Pipelines by Ready condition.", labels=["ready"])
        for ready, count in self._pipelines().items():
            pipelines.add_metric([ready], count)
        yield pipelines
        yield GaugeMetricFamily(
            "omni_operator_queue_length", "Pipelines that wait to be looked at.", value=self._queue_length()
        )
