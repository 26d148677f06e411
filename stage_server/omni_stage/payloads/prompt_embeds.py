"""PromptEmbedsPayload: a prompt as embeddings [rows, hidden size], as checked bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from omni_proto.tensors import PROMPT_EMBEDS_DTYPES, crc32c
from omni_stage.errors import InvalidTensorError
from omni_stage.payloads.checks import (
    DEFAULT_LIMITS,
    PayloadLimits,
    check_finite,
    check_header,
    check_intact,
    check_size,
    dtype_name,
    read_bytes,
    write_bytes,
)

if TYPE_CHECKING:
    import torch

_FIELD = "prompt_embeds"


class PromptEmbedsPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prompt embeddings as raw bytes. Construction checks that they are consistent and intact. `check` applies the
    limits."""

    data: bytes
    """Row-major, little-endian."""
    shape: list[int]
    """[rows, hidden size]."""
    dtype: str
    """float32, float16 or bfloat16."""
    checksum: int
    """CRC-32C of the data."""

    def __post_init__(self) -> None:
        """Check shape, dtype, length and checksum. Raises InvalidTensorError, CorruptTensorError."""
        if len(self.shape) != 2:
            raise InvalidTensorError(
                f"{_FIELD}: must have 2 dimensions [rows, hidden size], not {len(self.shape)}", field=_FIELD, limit=2
            )
        if self.dtype not in PROMPT_EMBEDS_DTYPES:
            raise InvalidTensorError(
                f"{_FIELD}: dtype must be one of {', '.join(sorted(PROMPT_EMBEDS_DTYPES))}", field=_FIELD
            )
        check_header(self.shape, self.dtype, len(self.data), field=_FIELD)
        check_intact(self.data, self.checksum, field=_FIELD)

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, limits: PayloadLimits = DEFAULT_LIMITS) -> PromptEmbedsPayload:
        """Returns the payload of a tensor [rows, hidden size] on any device.

        Checks the limits. Raises InvalidTensorError, NonFiniteTensorError.
        """
        dtype = dtype_name(tensor, field=_FIELD)
        shape = list(tensor.shape)
        check_size(shape, dtype, limits, field=_FIELD)
        data = write_bytes(tensor, field=_FIELD)
        payload = cls(data=data, shape=shape, dtype=dtype, checksum=crc32c(data))
        payload.check(limits)
        return payload

    def to_tensor(self, device: str | torch.device = "cpu") -> torch.Tensor:
        """Returns a writable copy [rows, hidden size] on the device."""
        return read_bytes(self.data, self.shape, self.dtype, device)

    def check(self, limits: PayloadLimits = DEFAULT_LIMITS) -> None:
        """Check size and values against the limits. Raises InvalidTensorError, NonFiniteTensorError."""
        check_size(self.shape, self.dtype, limits, field=_FIELD)
        if not limits.allow_non_finite:
            check_finite(self.data, self.dtype, field=_FIELD)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return len(self.data)

    def __repr__(self) -> str:
        """Returns shape, dtype and size, but no values: values must not reach a log."""
        return f"PromptEmbedsPayload(shape={self.shape}, dtype={self.dtype!r}, nbytes={len(self.data)})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns what `__repr__` returns, without values, for the library rich."""
        return [("shape", self.shape), ("dtype", self.dtype), ("nbytes", len(self.data))]
