"""Errors of the contracts: one root; each tensor error says whether it is corrupt or invalid.

A leaf: imports nothing, so that the control plane can use it too. Messages name the tensor, the limit and the remedy
and never hold tensor values or prompt text. Errors of a call are in `client/errors.py`.
"""

from __future__ import annotations

from enum import StrEnum


class OmniProtoError(Exception):
    """Root of every error that omni_proto raises on purpose."""


class SchemaError(OmniProtoError):
    """A tensor schema is not well-formed, or a message that should describe one does not."""


class EncodeError(OmniProtoError):
    """What is to be sent cannot be written: a fault of the sender."""


class ArgumentError(OmniProtoError, ValueError):
    """The client was called with arguments that no server could serve."""


class WireError(OmniProtoError):
    """Bytes that came are not a message of the protocol: truncated or damaged, or never protobuf."""


class TensorErrorKind(StrEnum):
    """Whose fault a tensor error is, and so its gRPC code."""

    CORRUPT = "corrupt"
    """The transfer lost, repeated or changed data: DATA_LOSS, reason CORRUPT_TENSOR."""
    INVALID = "invalid"
    """The sender announced or sent what may not be sent: INVALID_ARGUMENT, reason INVALID_TENSOR."""
    NON_FINITE = "non_finite"
    """Invalid by its values: INVALID_ARGUMENT, reason NON_FINITE_TENSOR."""


class TensorError(OmniProtoError):
    """Root of the errors of a tensor on an edge."""

    kind: TensorErrorKind = TensorErrorKind.INVALID

    def __init__(self, tensor: str, message: str, *, limit: object = "") -> None:
        super().__init__(f"tensor {tensor!r}: {message}")
        self.tensor = tensor
        """Name of the tensor; empty if it is not known."""
        self.limit = str(limit)
        """The limit that was passed, with its unit; empty if none."""

    @property
    def is_corrupt(self) -> bool:
        """Whether the transfer is at fault (DATA_LOSS) rather than the sender (INVALID_ARGUMENT)."""
        return self.kind is TensorErrorKind.CORRUPT


class CorruptTensorError(TensorError):
    """The transfer lost, repeated or changed data."""

    kind = TensorErrorKind.CORRUPT


class ChecksumError(CorruptTensorError):
    """The CRC-32C of a chunk's data is not the one that it carries."""


class OutOfOrderChunkError(CorruptTensorError):
    """A chunk begins beyond the next row: rows before it are missing or come later."""


class DuplicateChunkError(CorruptTensorError):
    """A chunk holds only rows that came before."""


class OverlappingChunkError(CorruptTensorError):
    """A chunk holds rows that came before, and new ones."""


class MissingRowsError(CorruptTensorError):
    """The input ended before the tensor's last chunk."""


class ChunkAfterLastError(CorruptTensorError):
    """A chunk came after the one that said last."""


class ChunkLengthError(CorruptTensorError):
    """The bytes of a chunk are not rows x row bytes."""


class InvalidTensorError(TensorError):
    """The sender announced or sent what may not be sent."""


class OversizedTensorError(InvalidTensorError):
    """More rows or bytes than the header, the schema or the budget allow."""


class WrongHeaderError(InvalidTensorError):
    """A header is not what the edge's schema says, or is missing, or came twice."""


class UnknownTensorError(InvalidTensorError):
    """A chunk names a tensor that no header announced."""


class EmptyChunkError(InvalidTensorError):
    """A chunk without rows that does not end its tensor."""


class InvalidBoolError(InvalidTensorError):
    """A bool tensor holds bytes other than 0 and 1."""


class NonFiniteTensorError(InvalidTensorError):
    """A tensor holds NaN or infinity."""

    kind = TensorErrorKind.NON_FINITE
