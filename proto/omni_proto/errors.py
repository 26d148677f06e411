"""The base class of all errors of omni_proto, and the errors of schemas, messages and tensors.

Each tensor error says whether the transfer or the sender is at fault. This module imports nothing of the project, so
that the control plane can use it too. The message of a tensor error names the tensor. No message contains tensor values
or prompt text. Errors of a call are in `client/errors.py`.
"""

from __future__ import annotations

import copyreg
from enum import StrEnum


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


class WireError(OmniProtoError):
    """The received bytes are not a message of the protocol: truncated, damaged, or never protobuf."""


class TensorErrorKind(StrEnum):
    """Whether the transfer or the sender caused a tensor error; decides its gRPC code."""

    CORRUPT = "corrupt"
    """The transfer lost, repeated or changed data: DATA_LOSS, reason CORRUPT_TENSOR."""
    INVALID = "invalid"
    """The sender announced or sent something that is not allowed: INVALID_ARGUMENT, reason INVALID_TENSOR."""
    NON_FINITE = "non_finite"
    """The values are NaN or infinite: INVALID_ARGUMENT, reason NON_FINITE_TENSOR."""


class TensorError(OmniProtoError):
    """Root of the errors of a tensor on an edge."""

    kind: TensorErrorKind = TensorErrorKind.INVALID

    def __init__(self, tensor: str, message: str, *, limit: object = "") -> None:
        super().__init__(f"tensor {tensor!r}: {message}")
        self.tensor = tensor
        """Name of the tensor; empty if it is not known."""
        self.limit = str(limit)
        """The limit that was exceeded, with its unit; empty if none."""


class CorruptTensorError(TensorError):
    """The transfer lost, repeated or changed data."""

    kind = TensorErrorKind.CORRUPT


class ChecksumError(CorruptTensorError):
    """The CRC-32C of a chunk's data differs from the checksum in the chunk."""


class OutOfOrderChunkError(CorruptTensorError):
    """A chunk begins after the next expected row: the rows before it are missing or late."""


class DuplicateChunkError(CorruptTensorError):
    """A chunk holds only rows that were already received."""


class OverlappingChunkError(CorruptTensorError):
    """A chunk holds rows that were already received, and new ones."""


class MissingRowsError(CorruptTensorError):
    """The input ended before the tensor's last chunk."""


class ChunkAfterLastError(CorruptTensorError):
    """A chunk came after the one marked as the last."""


class ChunkLengthError(CorruptTensorError):
    """A chunk's data is not exactly rows x bytes per row long."""


class InvalidTensorError(TensorError):
    """The sender announced or sent something that is not allowed."""


class OversizedTensorError(InvalidTensorError):
    """More rows or bytes than the header, the schema or the budget allow."""


class WrongHeaderError(InvalidTensorError):
    """A header contradicts the edge's schema, is missing, or came twice."""


class UnknownTensorError(InvalidTensorError):
    """A chunk names a tensor that no header announced."""


class EmptyChunkError(InvalidTensorError):
    """A chunk without rows that does not end its tensor."""


class InvalidBoolError(InvalidTensorError):
    """A bool tensor holds bytes other than 0 and 1."""


class NonFiniteTensorError(InvalidTensorError):
    """A tensor holds NaN or infinity."""

    kind = TensorErrorKind.NON_FINITE
