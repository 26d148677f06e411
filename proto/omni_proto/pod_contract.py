"""The contract between a stage's pod and its environment: exit codes, termination messages, probes, ports, labels,
metrics.

The stage server produces these. The operator, `omnipipe run`, dashboards, alerts and benchmarks consume them. They are
defined only here, so that both sides use the same names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final

DOMAIN: Final = "omnipipeline.io"
"""Domain of labels and annotations. Also the resource's API group, and the domain in google.rpc.ErrorInfo."""

PIPELINE_LABEL: Final = f"{DOMAIN}/pipeline"
STAGE_LABEL: Final = f"{DOMAIN}/stage"
REVISION_LABEL: Final = f"{DOMAIN}/revision"
ROLE_LABEL: Final = f"{DOMAIN}/role"
"""On pods and other objects of one stage: `entry` for the stage that receives clients' requests, else `inner`."""

GRPC_PORT: Final = 50051
HEALTH_PORT: Final = 50052
METRICS_PORT: Final = 9090
GRPC_PORT_NAME: Final = "grpc"
HEALTH_PORT_NAME: Final = "health"
METRICS_PORT_NAME: Final = "metrics"

READINESS: Final = "readiness"
"""Service of grpc.health.v1 that reports whether the stage accepts requests."""
LIVENESS: Final = "liveness"
"""Service of grpc.health.v1 that is NOT_SERVING if a restart would help."""

TERMINATION_LOG_VARIABLE: Final = "OMNI_TERMINATION_LOG"
"""Environment variable that names the file of the termination message."""
START_LIMIT_VARIABLE: Final = "OMNI_START_LIMIT_SECONDS"
"""Environment variable with the seconds after which kubelet restarts a stage that has not become ready."""
DEFAULT_TERMINATION_LOG: Final = "/dev/termination-log"
COMPILE_CACHE_VARIABLE: Final = "OMNI_COMPILE_CACHE"
"""Environment variable that names the folder where pods share compiled code."""
COMPILED_FOLDERS: Final = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "CUDA_CACHE_PATH": "cuda",
    "NUMBA_CACHE_DIR": "numba",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
"""Environment variables that name the pod's own folders of code that is compiled at run time, and their names."""
MAX_TERMINATION_BYTES: Final = 1024
"""Maximum bytes of the message's text. Kubelet reads 4,096 bytes of the file."""


class StageMetric(StrEnum):
    """Names of a stage server's metrics, as queries use them.

    A histogram has the series NAME_bucket, NAME_sum and NAME_count. The entry stage exports the pipeline's metrics.
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
    DOWNSTREAM_CHOICES = "omni_stage_downstream_choices_total"
    DOWNSTREAM_EJECTIONS = "omni_stage_downstream_ejections_total"
    INFLIGHT_REQUESTS = "omni_stage_inflight_requests"
    INFLIGHT_LIMIT_REQUESTS = "omni_stage_inflight_limit_requests"
    WAITING_REQUESTS = "omni_stage_waiting_requests"
    ENGINE_WAITING_SECONDS = "omni_stage_engine_waiting_seconds_total"
    ENGINE_RUNNING_SECONDS = "omni_stage_engine_running_seconds_total"
    ENGINE_LIMIT_REQUESTS = "omni_stage_engine_limit_requests"
    INFLIGHT_BYTES = "omni_stage_inflight_bytes"
    INFLIGHT_LIMIT_BYTES = "omni_stage_inflight_limit_bytes"
    POD_SECONDS = "omni_stage_pod_seconds_total"
    READY = "omni_stage_ready"
    START_LIMIT_SECONDS = "omni_stage_start_limit_seconds"
    ENGINE_HEALTHY = "omni_stage_engine_healthy"
    COMPILED_CHECK_FAILED = "omni_stage_compiled_check_failed"
    KERNELS_COMPILED = "omni_stage_kernels_compiled_total"
    REUSED_ROWS = "omni_stage_reused_rows_total"
    REUSED_ROW_BYTES = "omni_stage_reused_row_bytes_total"
    CERTIFICATE_EXPIRY_SECONDS = "omni_stage_tls_certificate_expiry_timestamp_seconds"
    CERTIFICATE_REJECTED = "omni_stage_tls_certificate_rejected"
    PIPELINE_REQUESTS = "omni_pipeline_requests_total"
    PIPELINE_HELD_REFUSALS = "omni_pipeline_held_refusals_total"
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
    """EX_CONFIG of sysexits.h: a restart with the same configuration would fail again."""
    ABORTED = 143
    """A second SIGTERM ended a drain, or a SIGTERM ended a download."""


class TerminationReason(StrEnum):
    """Why a container of a stage's pod ended, or will be ended by its liveness probe."""

    INVALID_CONFIGURATION = "InvalidConfiguration"
    START_FAILED = "StartFailed"
    ENGINE_DEAD = "EngineDead"
    STEP_TIMEOUT = "StepTimeout"
    """The engine no longer completes steps; the stage server still runs."""
    FETCH_FAILED = "FetchFailed"


@dataclass(frozen=True, slots=True)
class Termination:
    """A termination message, which kubelet copies into the container's status."""

    reason: str
    """A TerminationReason; empty if there is no message, or if another program wrote it."""
    message: str = ""
    field: str = ""
    """The wrong field of the configuration."""

    def encode(self) -> str:
        """Returns JSON {reason, message, field}, with at most MAX_TERMINATION_BYTES of message."""
        short = self.message.encode()[:MAX_TERMINATION_BYTES].decode(errors="ignore")
        return json.dumps({"reason": self.reason, "message": short, "field": self.field}, ensure_ascii=False)


def parse_termination(text: str) -> Termination | None:
    """Returns the termination message in a text, or None if the text is not JSON, because another program wrote it.

    Fields that are not strings count as empty. If the JSON is not an object, all fields are empty. Raises nothing.
    """
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return Termination("")
    values = (document.get(name) for name in ("reason", "message", "field"))
    return Termination(*(value if isinstance(value, str) else "" for value in values))
