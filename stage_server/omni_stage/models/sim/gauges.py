"""Exports a paced engine's metrics under vLLM's names, so that dashboards and alerts have data as with vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_LABELS = ("engine", "model_name")
_GAUGES = {
    "vllm:num_requests_running": "Requests in the engine's batches.",
    "vllm:num_requests_waiting": "Requests that wait in the engine's scheduler.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache that is in use, 0 to 1.",
}
_COUNTERS = {
    "vllm:prompt_tokens": "Prompt tokens that the engine processed.",
    "vllm:generation_tokens": "Tokens that the engine generated.",
    "vllm:num_preemptions": "Requests that lost their KV cache to others and were computed again.",
}


@dataclass(frozen=True, slots=True)
class Load:
    """The engine's current load, and its totals since its start."""

    running: int
    waiting: int
    kv_share: float = 0.0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class EngineGauges(Collector):
    """A collector that reads the engine's load at each scrape."""

    def __init__(self, model: str, read: Callable[[], Load], registry: CollectorRegistry = REGISTRY) -> None:
        """`read` is called on the thread that renders the metrics."""
        self._labels = ("0", model)
        self._read = read
        self._registry = registry
        registry.register(self)

    def close(self) -> None:
        """Unregister the collector."""
        self._registry.unregister(self)

    def describe(self) -> list[Metric]:
        """Returns no metric, so that several engines may register in one process, as with vLLM."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics of a scrape."""
        load = self._read()
        for (name, what), value in zip(_GAUGES.items(), (load.running, load.waiting, load.kv_share), strict=True):
            gauge = GaugeMetricFamily(name, what, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for (name, what), value in zip(
            _COUNTERS.items(), (load.prompt_tokens, load.generated_tokens, load.preemptions), strict=True
        ):
            counter = CounterMetricFamily(name, what, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter
