"""What a stage's pod and whoever runs it agree on: exit codes, termination messages, probes, ports, labels, metrics.

The stage server writes it; the operator, `omnipipe run`, dashboards, alerts and the benches read it. Said here once, so
that neither side can invent a word that the other does not know.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

DOMAIN: Final = "omnipipeline.io"
"""Of labels, annotations and the resource's group; of google.rpc.ErrorInfo in errors."""

PIPELINE_LABEL: Final = f"{DOMAIN}/pipeline"
STAGE_LABEL: Final = f"{DOMAIN}/stage"
REVISION_LABEL: Final = f"{DOMAIN}/revision"
ROLE_LABEL: Final = f"{DOMAIN}/role"
"""On pods and on what belongs to one stage: `entry` for the stage that takes clients' requests, else `inner`."""

GRPC_PORT: Final = 50051
HEALTH_PORT: Final = 50052
METRICS_PORT: Final = 9090
GRPC_PORT_NAME: Final = "grpc"
HEALTH_PORT_NAME: Final = "health"
METRICS_PORT_NAME: Final = "metrics"

READINESS: Final = "readiness"
"""Service of grpc.health.v1 that says whether the stage takes requests."""
LIVENESS: Final = "liveness"
"""Service of grpc.health.v1 that says whether a restart would help."""

TERMINATION_LOG_VARIABLE: Final = "OMNI_TERMINATION_LOG"
"""Environment variable that names the file of the termination message."""
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"
MAX_TERMINATION_BYTES: Final = 1024
"""Of the message's text. Kubelet reads 4,096 bytes of the file."""


class StageMetric(StrEnum):
    """Metrics of a stage server, by the names that queries ask for.

    A histogram has the series NAME_bucket, NAME_sum and NAME_count. Those of the pipeline come from its entry stage.
    """

    INFO = "omni_stage_info"
    REQUESTS = "omni_stage_requests_total"
    REQUEST_SECONDS = "omni_stage_request_seconds"
    QUEUE_SECONDS = "omni_stage_queue_seconds"
    FIRST_OUTPUT_SECONDS = "omni_stage_first_output_seconds"
    EDGE_BYTES = "omni_stage_edge_bytes_total"
    EDGE_TENSORS = "omni_stage_edge_tensors_total"
    EDGE_CHUNK_SECONDS = "omni_stage_edge_chunk_seconds"
    DOWNSTREAM_ERRORS = "omni_stage_downstream_errors_total"
    INFLIGHT_REQUESTS = "omni_stage_inflight_requests"
    INFLIGHT_LIMIT_REQUESTS = "omni_stage_inflight_limit_requests"
    INFLIGHT_BYTES = "omni_stage_inflight_bytes"
    INFLIGHT_LIMIT_BYTES = "omni_stage_inflight_limit_bytes"
    READY = "omni_stage_ready"
    ENGINE_HEALTHY = "omni_stage_engine_healthy"
    COMPILED_CHECK_FAILED = "omni_stage_compiled_check_failed"
    CERTIFICATE_EXPIRY_SECONDS = "omni_stage_tls_certificate_expiry_timestamp_seconds"
    CERTIFICATE_REJECTED = "omni_stage_tls_certificate_rejected"
    PIPELINE_REQUESTS = "omni_pipeline_requests_total"
    PIPELINE_REQUEST_SECONDS = "omni_pipeline_request_seconds"
    PIPELINE_FIRST_TEXT_SECONDS = "omni_pipeline_first_text_seconds"
    PIPELINE_FIRST_AUDIO_SECONDS = "omni_pipeline_first_audio_seconds"
    PIPELINE_AUDIO_SECONDS = "omni_pipeline_audio_seconds_total"
    PIPELINE_REAL_TIME_FACTOR = "omni_pipeline_real_time_factor_ratio"
    PIPELINE_SPOKEN_ANSWERS = "omni_pipeline_spoken_answers_total"
    PIPELINE_AUDIO_UNDERRUNS = "omni_pipeline_audio_underruns_total"
    PIPELINE_SILENCE_SECONDS = "omni_pipeline_audio_silence_seconds_total"


class ExitCode(IntEnum):
    """Exit codes of `python -m omni_stage`."""

    DRAINED = 0
    FAILED = 1
    ENGINE_DEAD = 70
    """EX_SOFTWARE of sysexits.h."""
    BAD_CONFIGURATION = 78
    """EX_CONFIG of sysexits.h: to start it again as it is changes nothing."""
    ABORTED = 143
    """A second SIGTERM ended a drain."""


class TerminationReason(StrEnum):
    """Why a container of a stage's pod ended, or will be ended by its liveness probe."""

    INVALID_CONFIGURATION = "InvalidConfiguration"
    START_FAILED = "StartFailed"
    ENGINE_DEAD = "EngineDead"
    STEP_TIMEOUT = "StepTimeout"
    """The engine makes no step; the stage server still runs."""
    FETCH_FAILED = "FetchFailed"


@dataclass(frozen=True, slots=True)
class Termination:
    """A termination message: what kubelet puts into the container's status."""

    reason: str
    """A TerminationReason; empty where nothing was left, or by something that is no stage server."""
    message: str = ""
    field: str = ""
    """What in the configuration is wrong."""

    def encode(self) -> str:
        """JSON {reason, message, field}, with at most MAX_TERMINATION_BYTES of message."""
        short = self.message.encode()[:MAX_TERMINATION_BYTES].decode(errors="ignore")
        return json.dumps({"reason": self.reason, "message": short, "field": self.field}, ensure_ascii=False)


def parse_termination(text: str) -> Termination | None:
    """A termination message; None for text that is no JSON: a foreign program's words. Raises nothing.

    Values that are no text, and JSON of another form, say nothing.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return Termination("")
    values = (document.get(name) for name in ("reason", "message", "field"))
    return Termination(*(value if isinstance(value, str) else "" for value in values))
