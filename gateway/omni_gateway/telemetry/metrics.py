"""The gateway's metrics: omni_gateway_*."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class GatewayMetrics:
    """The metrics of one gateway, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "omni_gateway_requests", "Requests that ended.", ["route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "omni_gateway_request_seconds",
            "Time from a request to its end.",
            ["route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "omni_gateway_first_output_seconds",
            "From a request to the first text or audio of its answer.",
            ["route", "kind"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.inflight = Gauge(
            "omni_gateway_inflight_requests", "Requests that are being answered.", registry=self.registry
        )
        self.audio_seconds = Counter(
            "omni_gateway_audio_seconds", "Audio returned to clients.", ["model"], registry=self.registry
        )
        self.refused = Counter(
            "omni_gateway_refused", "Requests that were refused, by code.", ["code"], registry=self.registry
        )
        self.broken = Counter(
            "omni_gateway_broken_answers",
            "Streamed answers that a stage's error ended after status 200, by code.",
            ["code"],
            registry=self.registry,
        )
        self.cut = Counter(
            "omni_gateway_cut_answers",
            "Answers that miss text or speech, because a stage reached its maximum length.",
            ["route", "stage"],
            registry=self.registry,
        )
        self.left = Counter(
            "omni_gateway_clients_left", "Requests whose client disconnected before the end.", registry=self.registry
        )
        self.replicas = Gauge(
            "omni_gateway_counted_replicas",
            "Ready replicas of this gateway, as --replicas-of counts them; they share the limits of keys.",
            registry=self.registry,
        )
        self.api_calls = Counter(
            "omni_gateway_api_server_calls", "Calls of the Kubernetes API.", ["verb", "code"], registry=self.registry
        )

    def count_cut(self, route: str, stages: Sequence[str]) -> None:
        """Count an answer for each stage whose maximum length cut it."""
        for stage in stages:
            self.cut.labels(route, stage).inc()

    def count_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call of the Kubernetes API; see omni_kube.api.transport.CallMetrics."""
        self.api_calls.labels(verb, code).inc()
