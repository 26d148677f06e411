"""Errors of the stage server. All derive from OmniStageError, and each class states its gRPC code and its reason.

Only `service/errors.py` turns them into gRPC statuses. An error's message is sent to the client: it names the field,
the limit and the remedy where there are any, and never holds prompt text, token ids, tensor values or file contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from grpc import StatusCode

from omni_proto.stage.v1 import errors_pb2 as reasons


@dataclass(frozen=True)
class ErrorDetails:
    """What ErrorInfo, BadRequest and RetryInfo report in addition to the message."""

    field: str = ""
    """Path of the field in the request or configuration, e.g. "start.sampling[talker].top_p"."""
    limit: str = ""
    """The limit that was exceeded, with its unit if it has one."""
    actual: str = ""
    """What exceeded the limit, with its unit, such as "6027 tokens"."""
    retry_after_s: float | None = None
    """Seconds after which a retry may succeed; sent as RetryInfo."""


class OmniStageError(Exception):
    """Base class of every error that the stage server raises on purpose."""

    code: StatusCode = StatusCode.INTERNAL
    reason: reasons.ErrorReason = reasons.ERROR_REASON_INTERNAL

    def __init__(
        self,
        message: str,
        *,
        field: str = "",
        limit: object = "",
        actual: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.details = ErrorDetails(field=field, limit=str(limit), actual=actual, retry_after_s=retry_after_s)


class InvalidRequestError(OmniStageError):
    """A field of the request is wrong."""

    code = StatusCode.INVALID_ARGUMENT
    reason = reasons.ERROR_REASON_INVALID_REQUEST


@contextmanager
def in_field(field: str) -> Iterator[None]:
    """Sets the field of each InvalidRequestError that is raised in the context without one."""
    try:
        yield
    except InvalidRequestError as error:
        if not error.details.field:
            error.details = replace(error.details, field=field)
        raise


class ProtocolViolationError(InvalidRequestError):
    """Messages arrived in an order that the protocol forbids."""

    reason = reasons.ERROR_REASON_PROTOCOL_VIOLATION


class InvalidTensorError(InvalidRequestError):
    """A tensor or payload does not fit its header, its schema or a limit."""

    reason = reasons.ERROR_REASON_INVALID_TENSOR


class NonFiniteTensorError(InvalidTensorError):
    """A tensor holds NaN or infinity."""

    reason = reasons.ERROR_REASON_NON_FINITE_TENSOR


class CorruptTensorError(OmniStageError):
    """A checksum is wrong, or rows are missing or duplicated."""

    code = StatusCode.DATA_LOSS
    reason = reasons.ERROR_REASON_CORRUPT_TENSOR


class InvalidMediaError(InvalidRequestError):
    """An image, audio or a video cannot be decoded, or exceeds a limit."""

    reason = reasons.ERROR_REASON_INVALID_MEDIA


class PromptTooLongError(InvalidRequestError):
    """The prompt, or the prompt with its given reply, does not fit the engine's longest sequence."""

    reason = reasons.ERROR_REASON_PROMPT_TOO_LONG


class EdgeSchemaMismatchError(OmniStageError):
    """The upstream stage and this stage disagree on the tensors of the edge between them."""

    code = StatusCode.FAILED_PRECONDITION
    reason = reasons.ERROR_REASON_EDGE_SCHEMA_MISMATCH


class TooManyRequestsError(OmniStageError):
    """The stage already runs its maximum number of requests."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = reasons.ERROR_REASON_TOO_MANY_REQUESTS


class ByteBudgetExceededError(OmniStageError):
    """The request needs more bytes than the stage's byte budget has left."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = reasons.ERROR_REASON_BYTE_BUDGET_EXCEEDED


class RequestTooLargeError(OmniStageError):
    """The request by itself exceeds a limit, so a retry does not help."""

    code = StatusCode.RESOURCE_EXHAUSTED
    reason = reasons.ERROR_REASON_REQUEST_TOO_LARGE


class DeadlineExceededError(OmniStageError):
    """The call's deadline passed."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = reasons.ERROR_REASON_DEADLINE_EXCEEDED


class DrainingError(OmniStageError):
    """The stage is shutting down."""

    code = StatusCode.UNAVAILABLE
    reason = reasons.ERROR_REASON_DRAINING


class NotReadyError(OmniStageError):
    """The engine is still loading."""

    code = StatusCode.UNAVAILABLE
    reason = reasons.ERROR_REASON_NOT_READY


class EngineDeadStageError(OmniStageError):
    """The engine's process died; the stage server exits too."""

    code = StatusCode.UNAVAILABLE
    reason = reasons.ERROR_REASON_ENGINE_DEAD


class StepTimeoutError(OmniStageError):
    """The engine completed no step within the step timeout."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = reasons.ERROR_REASON_STEP_TIMEOUT


class PrepareTimeoutError(OmniStageError):
    """Decoding the request's media, or preparing the engine's input, took too long."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = reasons.ERROR_REASON_PREPARE_TIMEOUT


class QueueTimeoutError(OmniStageError):
    """The request waited too long in the engine's queue."""

    code = StatusCode.DEADLINE_EXCEEDED
    reason = reasons.ERROR_REASON_QUEUE_TIMEOUT


class ModelExecutionError(OmniStageError):
    """The model failed on this request, while other requests continue; or the request was aborted."""

    reason = reasons.ERROR_REASON_MODEL_ERROR


class DownstreamUnavailableError(OmniStageError):
    """The downstream stage cannot be reached."""

    code = StatusCode.UNAVAILABLE
    reason = reasons.ERROR_REASON_DOWNSTREAM_UNAVAILABLE


class DownstreamProtocolError(OmniStageError):
    """The downstream stage broke the protocol."""

    reason = reasons.ERROR_REASON_DOWNSTREAM_PROTOCOL


class ConfigurationError(OmniStageError):
    """The configuration (component, checkpoint, engine arguments) is wrong. Raised at start-up and by `fetch`."""

    code = StatusCode.FAILED_PRECONDITION
    reason = reasons.ERROR_REASON_INVALID_REQUEST
