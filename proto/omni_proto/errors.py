"""The errors that the protocol knows: of schemas and messages, and those with which a stage ends a request.

This module imports nothing of the project and no gRPC, so that the control plane can use it too. No message contains
tensor values or prompt text. Errors of a client's call are in `client/errors.py`.
"""

from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import Self


class OmniProtoError(Exception):
    """Root of every error that omni_proto raises on purpose. Errors can be pickled, as process pools need."""

    def __reduce__(self) -> tuple[object, ...]:
        # Exception's own __reduce__ passes the message to __init__, which takes other arguments in some classes.
        return (copyreg.__newobj__, (type(self), *self.args), self.__dict__)  # type: ignore[attr-defined]


class SchemaError(OmniProtoError):
    """A tensor schema is malformed, or a message does not contain a valid schema."""


class EncodeError(OmniProtoError):
    """A message cannot be encoded: a fault of the sender."""


class ArgumentError(OmniProtoError, ValueError):
    """The client was called with arguments that no server could serve."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """Path of the wrong argument, such as sampling[thinker].top_k; empty if it is none of a request."""


class WireError(OmniProtoError):
    """The received bytes are not a message of the protocol: truncated, damaged, or never protobuf."""


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


class OmniStageError(OmniProtoError):
    """Root of the errors with which a stage ends a request. Each class states its gRPC code and its reason."""

    code = "INTERNAL"
    """Name of the gRPC code."""
    reason = "INTERNAL"
    """omni_proto.stage.v1.ErrorReason without its prefix."""

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

    code = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class TensorError(OmniStageError):
    """Root of the errors of a tensor: on an edge, in a prompt, or in a payload."""

    @classmethod
    def of(cls, tensor: str, message: str, *, limit: object = "") -> Self:
        """Returns the error of a tensor on an edge; its name may be empty if it is not known."""
        return cls(f"tensor {tensor!r}: {message}", field=f"tensor[{tensor}]", limit=limit)


class CorruptTensorError(TensorError):
    """The transfer lost, repeated or changed data: a checksum is wrong, or rows are missing or duplicated."""

    code = "DATA_LOSS"
    reason = "CORRUPT_TENSOR"


class InvalidTensorError(TensorError, InvalidRequestError):
    """The sender announced or sent a tensor that does not fit its header, its schema or a limit."""

    reason = "INVALID_TENSOR"


class OversizedTensorError(InvalidTensorError):
    """More rows or bytes than the header, the schema or the budget allow."""


class NonFiniteTensorError(InvalidTensorError):
    """A tensor holds NaN or infinity."""

    reason = "NON_FINITE_TENSOR"
