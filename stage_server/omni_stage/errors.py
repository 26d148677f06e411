"""Errors of the stage server. All derive from OmniStageError; the first ones are the protocol's own.

Only `service/errors.py` turns them into gRPC statuses. An error's message is sent to the client: it names the field,
the limit and the remedy where there are any, and never holds prompt text, token ids, tensor values or file contents.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from omni_proto.errors import (
    CorruptTensorError as CorruptTensorError,
    InvalidRequestError as InvalidRequestError,
    InvalidTensorError as InvalidTensorError,
    NonFiniteTensorError as NonFiniteTensorError,
    OmniStageError as OmniStageError,
)


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

    reason = "PROTOCOL_VIOLATION"


class InvalidMediaError(InvalidRequestError):
    """An image, audio or a video cannot be decoded, or exceeds a limit."""

    reason = "INVALID_MEDIA"


class PromptTooLongError(InvalidRequestError):
    """The prompt, or the prompt with its given reply, does not fit the engine's longest sequence."""

    reason = "PROMPT_TOO_LONG"


class EdgeSchemaMismatchError(OmniStageError):
    """The upstream stage and this stage disagree on the tensors of the edge between them."""

    code = "FAILED_PRECONDITION"
    reason = "EDGE_SCHEMA_MISMATCH"


class TooManyRequestsError(OmniStageError):
    """The stage already runs its maximum number of requests."""

    code = "RESOURCE_EXHAUSTED"
    reason = "TOO_MANY_REQUESTS"


class ByteBudgetExceededError(OmniStageError):
    """The request needs more bytes than the stage's byte budget has left."""

    code = "RESOURCE_EXHAUSTED"
    reason = "BYTE_BUDGET_EXCEEDED"


class RequestTooLargeError(OmniStageError):
    """The request by itself exceeds a limit, so a retry does not help."""

    code = "RESOURCE_EXHAUSTED"
    reason = "REQUEST_TOO_LARGE"


class DeadlineExceededError(OmniStageError):
    """The call's deadline passed."""

    code = "DEADLINE_EXCEEDED"
    reason = "DEADLINE_EXCEEDED"


class DrainingError(OmniStageError):
    """The stage is shutting down."""

    code = "UNAVAILABLE"
    reason = "DRAINING"


class NotReadyError(OmniStageError):
    """The engine is still loading."""

    code = "UNAVAILABLE"
    reason = "NOT_READY"


class EngineDeadStageError(OmniStageError):
    """The engine's process died; the stage server exits too."""

    code = "UNAVAILABLE"
    reason = "ENGINE_DEAD"


class StepTimeoutError(OmniStageError):
    """The engine completed no step within the step timeout."""

    code = "DEADLINE_EXCEEDED"
    reason = "STEP_TIMEOUT"


class PrepareTimeoutError(OmniStageError):
    """Decoding the request's media, or preparing the engine's input, took too long."""

    code = "DEADLINE_EXCEEDED"
    reason = "PREPARE_TIMEOUT"


class QueueTimeoutError(OmniStageError):
    """The request waited too long in the engine's queue."""

    code = "DEADLINE_EXCEEDED"
    reason = "QUEUE_TIMEOUT"


class ModelExecutionError(OmniStageError):
    """The model failed on this request, while other requests continue; or the request was aborted."""

    reason = "MODEL_ERROR"


class DownstreamUnavailableError(OmniStageError):
    """The downstream stage cannot be reached."""

    code = "UNAVAILABLE"
    reason = "DOWNSTREAM_UNAVAILABLE"


class DownstreamProtocolError(OmniStageError):
    """The downstream stage broke the protocol."""

    reason = "DOWNSTREAM_PROTOCOL"


class ConfigurationError(OmniStageError):
    """The configuration (component, checkpoint, engine arguments) is wrong. Raised at start-up and by `fetch`."""

    code = "FAILED_PRECONDITION"
    reason = "INVALID_REQUEST"
