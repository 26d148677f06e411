"""A stage's metrics in addition to vLLM's own: omni_stage_*, and omni_pipeline_* of the entry stage.

AnswerMeter measures when each answer of the entry stage reaches its caller.

Labels have a bounded number of values: codes and reasons of the protocol, and names from the configuration. The scrape
(the operator's PodMonitor) adds the labels of pipeline and stage. Counters start at 0, so that a rate includes the
first error. docs/observability.md lists all metrics; `python -m tools.observability` writes that list.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from omni_proto.pod_contract import START_LIMIT_VARIABLE, StageMetric
from omni_proto.rpc.balance.choice import Fault, Reason
from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2
from omni_proto.stage_config import StageConfig
from omni_stage.service.errors import OTHER_REASON, documented_errors

SAMPLE_BYTES: Final = {sampling_pb2.AUDIO_ENCODING_PCM_S16LE: 2, sampling_pb2.AUDIO_ENCODING_PCM_F32LE: 4}
DEFAULT_START_LIMIT_S: Final = 900.0
AUDIBLE_S: Final = 0.02
"""A shorter gap is not an underrun, because players buffer at least one packet of 20 ms."""
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CHUNK_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
REAL_TIME_FACTORS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1, 1.2, 1.5, 2, 3, 5, 10, 30)
exemplar_var: ContextVar[dict[str, str] | None] = ContextVar("exemplar", default=None)
"""The trace of the request that a task serves. Histograms of requests record it as an exemplar."""
RETRIED_CODES = ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL")


@dataclass(slots=True)
class AnswerMeter:
    """What the caller received, and when. Times are seconds since the request's start. The time of the first text or
    audio is None before that output was written; last_audio_s is 0 before any audio."""

    clock: Callable[[], float] = time.monotonic
    began: float = field(default_factory=time.monotonic)
    first_text_s: float | None = None
    first_audio_s: float | None = None
    last_audio_s: float = 0.0
    audio_s: float = 0.0
    """Playing time of the audio in seconds."""
    underruns: int = 0
    """How often a listener who plays the audio as soon as it arrives had none left to play, for more than AUDIBLE_S."""
    silence_s: float = 0.0
    """Total length of the underruns in seconds."""
    _played_until_s: float = 0.0
    """When the playback of all audio that was written so far ends."""

    def note_text(self) -> None:
        """Record that text was written to the caller's connection."""
        if self.first_text_s is None:
            self.first_text_s = self.clock() - self.began

    def note(self, response: stage_service_pb2.GenerateResponse) -> None:
        """Record a message that was written to the caller's connection."""
        kind = response.WhichOneof("message")
        if kind == "text":
            self.note_text()
        elif kind == "audio" and response.audio.data:
            self.last_audio_s = self.clock() - self.began
            self.first_audio_s = self.last_audio_s if self.first_audio_s is None else self.first_audio_s
            self._play(self.last_audio_s, chunk_seconds(response.audio))

    def _play(self, now_s: float, seconds: float) -> None:
        gap = now_s - self._played_until_s if self.audio_s else 0.0
        if gap > AUDIBLE_S:
            self.underruns += 1
            self.silence_s += gap
        self._played_until_s = max(self._played_until_s, now_s) + seconds
        self.audio_s += seconds


def chunk_seconds(chunk: events_pb2.AudioChunk) -> float:
    """Returns how long a chunk plays, in seconds."""
    frame = SAMPLE_BYTES.get(chunk.encoding, 0) * chunk.channels
    return len(chunk.data) / (frame * chunk.sample_rate_hz) if frame and chunk.sample_rate_hz else 0.0


class StageMetrics:
    """Metrics of one stage server."""

    def __init__(self, config: StageConfig, registry: CollectorRegistry, version: str = "") -> None:
        disable_created_metrics()  # Otherwise each counter and histogram has one more series (_created).
        self.registry = registry
        is_entry = config.input is None
        self.entry = EntryMetrics(registry) if is_entry else None
        """Metrics of the pipeline as a whole; None unless this is the entry stage."""
        Info(
            StageMetric.INFO.removesuffix("_info"),
            "The stage server's component and version, and whether it is the entry stage.",
            registry=registry,
        ).info({"component": config.component, "version": version, "entry": str(is_entry).lower()})
        self._requests = _errors_counter(StageMetric.REQUESTS, "Generate calls that have ended", registry)
        self._seconds = _histogram(
            StageMetric.REQUEST_SECONDS, "Time from Accepted to the end of the stage's own work.", registry
        )
        self._queue = _histogram(
            StageMetric.QUEUE_SECONDS,
            "Time from handing a request (Stream edges: its first part) to the engine until its scheduler took it.",
            registry,
        )
        self._first_output = _histogram(
            StageMetric.FIRST_OUTPUT_SECONDS, "Time from Accepted to the engine's first output.", registry
        )
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self._edge_bytes = counter(
            StageMetric.EDGE_BYTES,
            "Bytes of tensor rows sent or received on an edge, counted by this stage.",
            ("peer", "direction"),
            unit="bytes",
        )
        self._edge_tensors = counter(
            StageMetric.EDGE_TENSORS,
            "Complete tensors sent or received on an edge, counted by this stage.",
            ("peer", "direction"),
        )
        self._chunk = Histogram(
            StageMetric.EDGE_CHUNK_SECONDS,
            "Time until the transport accepted one message of tensor chunks; it grows when the downstream stage reads "
            "slowly.",
            ("peer",),
            unit="seconds",
            buckets=CHUNK_SECONDS,
            registry=registry,
        )
        self._downstream_errors = counter(
            StageMetric.DOWNSTREAM_ERRORS,
            "Failed calls to a downstream stage, by gRPC code; attempts that were retried count too.",
            ("peer", "code"),
        )
        self._choices = counter(
            StageMetric.DOWNSTREAM_CHOICES,
            "Choices of a downstream stage's pod, by reason; retried attempts count too.",
            ("peer", "reason"),
        )
        self._ejections = counter(
            StageMetric.DOWNSTREAM_EJECTIONS,
            "How often a downstream stage's pod was left out for a while, because it failed or was slow.",
            ("peer", "reason"),
        )
        self.in_flight = gauge(StageMetric.INFLIGHT_REQUESTS, "Calls of StageService in progress.")
        self.inflight_requests_limit = gauge(
            StageMetric.INFLIGHT_LIMIT_REQUESTS, "Maximum number of requests that the stage serves at once."
        )
        self.inflight_requests_limit.set(config.limits.max_concurrent_requests)
        self.waiting_requests = gauge(
            StageMetric.WAITING_REQUESTS,
            "Requests over Stream edges that wait until the engine has KV cache for them. They are not in "
            "vllm:num_requests_waiting.",
        )
        self.inflight_bytes = gauge(
            StageMetric.INFLIGHT_BYTES, "Bytes that admitted requests have reserved.", unit="bytes"
        )
        self.inflight_bytes_limit = gauge(
            StageMetric.INFLIGHT_LIMIT_BYTES,
            "Maximum number of bytes that all requests together may reserve.",
            unit="bytes",
        )
        began = time.monotonic()
        lived = ReadCounter(
            registry,
            StageMetric.POD_SECONDS,
            "Time for which the stage server has run: what a pod costs, whether it serves or not.",
            "seconds",
        )
        lived.read = lambda: time.monotonic() - began
        self.ready = gauge(StageMetric.READY, "1 while the stage accepts requests.")
        self.engine_healthy = gauge(
            StageMetric.ENGINE_HEALTHY,
            "1 while the engine is loaded and makes progress; 0 while it loads, and when it hangs or has died.",
        )
        gauge(
            StageMetric.START_LIMIT_SECONDS,
            "Longest time from the start of the process until the stage accepts requests; then kubelet restarts it.",
            unit="seconds",
        ).set(_start_limit_s())
        self.compiled_check_failed = gauge(
            StageMetric.COMPILED_CHECK_FAILED,
            "1 if compiled code or CUDA graphs failed the check at start-up; the stage then serves without them "
            "and is slower.",
        )
        self.kernels_compiled = ReadCounter(
            registry,
            StageMetric.KERNELS_COMPILED,
            "Kernels that the engine had to compile since it was ready; every request waits meanwhile.",
        )
        self.reused_rows = ReadCounter(
            registry,
            StageMetric.REUSED_ROWS,
            "Published rows of cached prefixes, which the engine did not compute again.",
        )
        self.reused_row_bytes = ReadCounter(
            registry, StageMetric.REUSED_ROW_BYTES, "Bytes of the published rows of cached prefixes.", "bytes"
        )
        self.engine_waiting = ReadCounter(
            registry,
            StageMetric.ENGINE_WAITING_SECONDS,
            "Time of all requests together in the engine's queue; its rate is the mean number of waiting requests.",
            "seconds",
        )
        self.engine_running = ReadCounter(
            registry,
            StageMetric.ENGINE_RUNNING_SECONDS,
            "Time of all requests together in the engine after its queue; its rate is the mean number of requests that "
            "the engine works on.",
            "seconds",
        )
        self.engine_limit = gauge(
            StageMetric.ENGINE_LIMIT_REQUESTS, "Maximum number of requests that the engine works on at once."
        )
        self._start_counters(config)

    def _start_counters(self, config: StageConfig) -> None:
        for edge in config.downstream:
            self._edge_bytes.labels(edge.stage, "sent")
            self._edge_tensors.labels(edge.stage, "sent")
            self._chunk.labels(edge.stage)
            for code in RETRIED_CODES:
                self._downstream_errors.labels(edge.stage, code)
            for reason in Reason:
                self._choices.labels(edge.stage, reason)
            for fault in Fault:
                self._ejections.labels(edge.stage, fault)
        if config.input is not None:
            self._edge_bytes.labels(config.input.source, "received")
            self._edge_tensors.labels(config.input.source, "received")

    def request_ended(self, code: str, reason: str, seconds: float) -> None:
        """Count a call that ended `seconds` after its start."""
        known = reason if (code, reason) in _KNOWN else OTHER_REASON
        self._requests.labels(code, known).inc()
        if self.entry is not None:
            self.entry.request_ended(code, known, seconds)

    def stage_finished(self, total_s: float, queue_s: float | None, first_output_s: float | None) -> None:
        """Record the times, in seconds, of a request that this stage finished; see the metrics' descriptions."""
        self._seconds.observe(total_s, exemplar_var.get())
        if queue_s is not None:
            self._queue.observe(max(0.0, queue_s), exemplar_var.get())
        if first_output_s is not None:
            self._first_output.observe(first_output_s, exemplar_var.get())

    def chunk_counter(self, peer: str) -> Callable[[int, float], None]:
        """Returns a function to call after each message of chunks, with its bytes and the seconds that sending took."""
        count_bytes, observe = self._edge_bytes.labels(peer, "sent").inc, self._chunk.labels(peer).observe

        def count(size: int, seconds: float) -> None:
            count_bytes(size)
            observe(seconds)

        return count

    def tensors_sent(self, peer: str, count: int) -> None:
        """Count tensors that were sent completely."""
        self._edge_tensors.labels(peer, "sent").inc(count)

    def input_received(self, peer: str, size: int, tensors: int) -> None:
        """Record the complete input of a request: `size` bytes and the number of tensors."""
        self._edge_bytes.labels(peer, "received").inc(size)
        self._edge_tensors.labels(peer, "received").inc(tensors)

    def downstream_error(self, peer: str, code: str) -> None:
        """Count a failed call to a downstream stage."""
        self._downstream_errors.labels(peer, code).inc()

    def pod_chosen(self, peer: str, reason: Reason) -> None:
        """Count a choice of a downstream stage's pod."""
        self._choices.labels(peer, reason).inc()

    def pod_ejected(self, peer: str, fault: Fault) -> None:
        """Count an ejection of a downstream stage's pod."""
        self._ejections.labels(peer, fault).inc()


def _start_limit_s() -> float:
    """Returns the pod's limit of a start in seconds; DEFAULT_START_LIMIT_S where nobody enforces one."""
    text = os.environ.get(START_LIMIT_VARIABLE, "")
    return float(text) if text.isdecimal() else DEFAULT_START_LIMIT_S


class ReadCounter(Collector):  # type: ignore[misc]
    """A counter whose value is read when it is scraped, like a gauge with a function."""

    def __init__(self, registry: CollectorRegistry, name: str, description: str, unit: str = "") -> None:
        self._name, self._description, self._unit = name, description, unit
        self.read: Callable[[], float] = lambda: 0.0
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yields the counter."""
        yield CounterMetricFamily(self._name, self._description, value=self.read(), unit=self._unit)


class EntryMetrics:
    """What a pipeline's clients experience, reported by its entry stage."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self._requests = _errors_counter(
            StageMetric.PIPELINE_REQUESTS, "Requests to the pipeline that have ended", registry
        )
        self.held_refusals = counter(
            StageMetric.PIPELINE_HELD_REFUSALS,
            "Refused requests whose answer waited because their client's calls are refused often.",
        )
        self._seconds = _histogram(
            StageMetric.PIPELINE_REQUEST_SECONDS,
            "Time from a request's start to its end, through all stages, for requests that ended with OK.",
            registry,
        )
        self._first_text = _histogram(
            StageMetric.PIPELINE_FIRST_TEXT_SECONDS,
            "Time from a request's start to the first text for the client.",
            registry,
        )
        self._first_audio = _histogram(
            StageMetric.PIPELINE_FIRST_AUDIO_SECONDS,
            "Time from a request's start to the first audio for the client.",
            registry,
        )
        self._audio = counter(
            StageMetric.PIPELINE_AUDIO_SECONDS, "Playing time of the audio that was returned.", unit="seconds"
        )
        self._real_time_factor = Histogram(
            StageMetric.PIPELINE_REAL_TIME_FACTOR,
            "Time from a request's start to its last audio, divided by the audio's playing time; below 1 is "
            "faster than playback.",
            unit="ratio",
            buckets=REAL_TIME_FACTORS,
            registry=registry,
        )
        self._spoken = counter(
            StageMetric.PIPELINE_SPOKEN_ANSWERS,
            "Answers with audio, by whether the audio arrived in time for playback without a gap.",
            ("continuous",),
        )
        for continuous in ("true", "false"):
            self._spoken.labels(continuous)
        self._underruns = counter(
            StageMetric.PIPELINE_AUDIO_UNDERRUNS,
            "How often a listener who plays audio as it arrives ran out of it for more than 20 ms.",
        )
        self._silence = counter(
            StageMetric.PIPELINE_SILENCE_SECONDS,
            "How long listeners who play audio as it arrives waited for more.",
            unit="seconds",
        )

    def request_ended(self, code: str, reason: str, seconds: float) -> None:
        """Count a request that ended `seconds` after its start."""
        self._requests.labels(code, reason).inc()
        if code == "OK":
            self._seconds.observe(seconds, exemplar_var.get())

    def answered(self, meter: AnswerMeter) -> None:
        """Record what a request's client received, whether the request finished or not."""
        if meter.first_text_s is not None:
            self._first_text.observe(meter.first_text_s, exemplar_var.get())
        if meter.first_audio_s is not None:
            self._first_audio.observe(meter.first_audio_s, exemplar_var.get())
        if meter.audio_s:
            self._audio.inc(meter.audio_s)
            self._real_time_factor.observe(meter.last_audio_s / meter.audio_s, exemplar_var.get())
            self._spoken.labels(str(not meter.underruns).lower()).inc()
            self._underruns.inc(meter.underruns)
            self._silence.inc(meter.silence_s)


_KNOWN = documented_errors()


def _histogram(name: str, what: str, registry: CollectorRegistry) -> Histogram:
    return Histogram(name, what, unit="seconds", buckets=SECONDS, registry=registry)


def _errors_counter(name: str, what: str, registry: CollectorRegistry) -> Counter:
    help_text = f"{what}, by gRPC code and documented reason (empty for OK)."
    counter = Counter(name, help_text, ("code", "reason"), registry=registry)
    for code, reason in sorted(_KNOWN):
        counter.labels(code, reason)
    return counter
