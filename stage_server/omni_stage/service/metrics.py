"""omni_stage_*: what a stage tells Prometheus beside vLLM's own metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CHUNK_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class StageMetrics:
    """Metrics of one stage server, bound to the stage's name."""

    def __init__(self, stage: str, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._stage = stage
        self._requests = Counter(
            "omni_stage_requests_total",
            "Generate calls that ended, by gRPC code and documented reason (empty for OK).",
            ("stage", "code", "reason"),
            registry=registry,
        )
        self._seconds = Histogram(
            "omni_stage_request_seconds",
            "Seconds from Accepted to the end of the stage's own work.",
            ("stage",),
            buckets=SECONDS,
            registry=registry,
        )
        self._queue = Histogram(
            "omni_stage_queue_seconds",
            "Seconds from handing a request to the engine until its scheduler took it.",
            ("stage",),
            buckets=SECONDS,
            registry=registry,
        )
        self._first_output = Histogram(
            "omni_stage_first_output_seconds",
            "Seconds from Accepted to the engine's first output.",
            ("stage",),
            buckets=SECONDS,
            registry=registry,
        )
        self._edge_bytes = Counter(
            "omni_stage_edge_bytes_total",
            "Bytes of tensor rows that travelled on an edge, as this stage saw it.",
            ("stage", "peer", "direction"),
            registry=registry,
        )
        self._edge_tensors = Counter(
            "omni_stage_edge_tensors_total",
            "Tensors that travelled whole on an edge, as this stage saw it.",
            ("stage", "peer", "direction"),
            registry=registry,
        )
        self._chunk = Histogram(
            "omni_stage_edge_chunk_seconds",
            "Seconds until the transport took one tensor chunk; grows when the downstream stage reads slowly.",
            ("stage", "peer"),
            buckets=CHUNK_SECONDS,
            registry=registry,
        )
        self._downstream_errors = Counter(
            "omni_stage_downstream_errors_total",
            "Calls to a downstream stage that failed, by gRPC code; a retried attempt counts too.",
            ("stage", "peer", "code"),
            registry=registry,
        )
        self.in_flight = Gauge(
            "omni_stage_requests_in_flight", "Generate calls in progress.", ("stage",), registry=registry
        ).labels(stage)
        self.inflight_bytes = Gauge(
            "omni_stage_inflight_bytes", "Bytes that admitted requests have reserved.", ("stage",), registry=registry
        ).labels(stage)
        self.inflight_bytes_limit = Gauge(
            "omni_stage_inflight_bytes_limit",
            "Bytes that all requests together may reserve.",
            ("stage",),
            registry=registry,
        ).labels(stage)
        self.ready = Gauge(
            "omni_stage_ready", "1 while the stage takes requests.", ("stage",), registry=registry
        ).labels(stage)

    def request_ended(self, code: str, reason: str) -> None:
        """Count a call."""
        self._requests.labels(self._stage, code, reason).inc()

    def stage_finished(self, total_s: float, queue_s: float | None, first_output_s: float | None) -> None:
        """Record the times of a request that this stage finished, in seconds."""
        self._seconds.labels(self._stage).observe(total_s)
        if queue_s is not None:
            self._queue.labels(self._stage).observe(max(0.0, queue_s))
        if first_output_s is not None:
            self._first_output.labels(self._stage).observe(first_output_s)

    def chunk_sent(self, peer: str, size: int, seconds: float) -> None:
        """Record a chunk that the transport took: bytes and seconds."""
        self._edge_bytes.labels(self._stage, peer, "sent").inc(size)
        self._chunk.labels(self._stage, peer).observe(seconds)

    def tensors_sent(self, peer: str, count: int) -> None:
        """Count tensors that were sent whole."""
        self._edge_tensors.labels(self._stage, peer, "sent").inc(count)

    def input_received(self, peer: str, size: int, tensors: int) -> None:
        """Record the whole input of a request: bytes and tensors."""
        self._edge_bytes.labels(self._stage, peer, "received").inc(size)
        self._edge_tensors.labels(self._stage, peer, "received").inc(tensors)

    def downstream_error(self, peer: str, code: str) -> None:
        """Count a failed call to a downstream stage."""
        self._downstream_errors.labels(self._stage, peer, code).inc()
