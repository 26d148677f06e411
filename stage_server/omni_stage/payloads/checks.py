"""Limits and checks of tensor headers, values, names and checksums, and tensors as raw bytes. Messages name the field.

torch is imported only in the functions that read or write its tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final, TypeGuard

from omni_proto.tensors import DTYPES, crc32c, is_finite
from omni_stage.errors import ConfigurationError, CorruptTensorError, InvalidTensorError, NonFiniteTensorError

if TYPE_CHECKING:
    import torch


NAME_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
"""Pattern of an entry's name. Names that match are safe in logs, metrics and error messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLimits:
    """Bounds of one request's payload. The defaults admit one sequence of 32768 rows of 3584 bfloat16 values."""

    max_dimensions: int = 4
    max_dimension_size: int = 1 << 20
    """Longest single dimension."""
    max_tensor_bytes: int = 256 << 20
    """Bytes of one tensor."""
    max_payload_bytes: int = 512 << 20
    """Bytes of the whole payload as it travels."""
    max_entries: int = 64
    """Named tensors and lists in one payload."""
    max_name_length: int = 64
    """Characters of a name."""
    max_list_length: int = 65536
    """Scalars in one list."""
    max_text_length: int = 4096
    """Characters of one string in a list."""
    allow_non_finite: bool = False
    """Whether NaN and infinity are allowed. It is true in the engine's process, which need not scan values again."""

    def __post_init__(self) -> None:
        """Refuse limits below 1 and wrong types. Raises ConfigurationError."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "allow_non_finite":
                if not isinstance(value, bool):
                    raise ConfigurationError("payload limit allow_non_finite must be true or false", field=item.name)
            elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(f"payload limit {item.name} must be an integer of at least 1", field=item.name)

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> PayloadLimits:
        """Returns limits from configuration. Limits that `values` does not name keep their defaults.

        Raises ConfigurationError.
        """
        known = {item.name for item in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"unknown payload limits: {', '.join(unknown)}; known are {', '.join(sorted(known))}", field=unknown[0]
            )
        return cls(**values)  # type: ignore[arg-type]

    def already_checked(self) -> PayloadLimits:
        """Returns the same limits without the scan for NaN and infinity, for payloads that this stage has checked."""
        return replace(self, allow_non_finite=True)


DEFAULT_LIMITS: Final = PayloadLimits()


Scalar = int | float | bool | str | None
"""The types of a list's values."""

ScalarList = list[Scalar]


def count_bytes(shape: Sequence[int], dtype: str, *, field: str) -> int:
    """Returns a tensor's size in bytes. Raises InvalidTensorError for an unknown dtype or a dimension below 1."""
    known = DTYPES.get(dtype)
    if known is None:
        # The value comes from the client and may hold anything, so the message does not repeat it.
        raise InvalidTensorError(f"{field}: dtype must be one of {', '.join(DTYPES)}", field=field)
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidTensorError(f"{field}: every dimension must be an integer of at least 1", field=field, limit=1)
    return math.prod(shape) * known.size


def check_header(shape: Sequence[int], dtype: str, data_bytes: int, *, field: str) -> None:
    """Check that the number of bytes fits shape and dtype. Raises InvalidTensorError."""
    expected = count_bytes(shape, dtype, field=field)
    if data_bytes != expected:
        raise InvalidTensorError(
            f"{field}: {data_bytes} bytes of data, but its shape and dtype need {expected}", field=field, limit=expected
        )


def check_intact(data: bytes, checksum: int, *, field: str) -> None:
    """Check the bytes against their checksum. Raises CorruptTensorError."""
    if crc32c(data) != checksum:
        raise CorruptTensorError(f"{field}: the checksum does not match, the data changed on its way", field=field)


def check_finite(data: bytes, dtype: str, *, field: str) -> None:
    """Refuse NaN and infinity, without a copy of the data. Integers and booleans pass. Raises NonFiniteTensorError."""
    if not is_finite(data, DTYPES[dtype]):
        raise NonFiniteTensorError(f"{field}: holds NaN or infinity", field=field)


def check_size(shape: Sequence[int], dtype: str, limits: PayloadLimits, *, field: str) -> None:
    """Check a tensor's shape and size against the limits, before its memory is allocated. Raises InvalidTensorError."""
    if len(shape) > limits.max_dimensions:
        raise InvalidTensorError(
            f"{field}: {len(shape)} dimensions, at most {limits.max_dimensions} are allowed",
            field=field,
            limit=limits.max_dimensions,
        )
    size = count_bytes(shape, dtype, field=field)
    if any(dimension > limits.max_dimension_size for dimension in shape):
        raise InvalidTensorError(
            f"{field}: a dimension is longer than {limits.max_dimension_size}",
            field=field,
            limit=limits.max_dimension_size,
        )
    if size > limits.max_tensor_bytes:
        raise InvalidTensorError(
            f"{field}: {size} bytes, at most {limits.max_tensor_bytes} are allowed; shorten the input",
            field=field,
            limit=f"{limits.max_tensor_bytes} bytes",
        )


def check_name(name: str, limits: PayloadLimits) -> None:
    """Check the name of an entry. Raises InvalidTensorError, which does not repeat a bad name."""
    if len(name) > limits.max_name_length:
        raise InvalidTensorError(
            f"additional_information: a name is longer than {limits.max_name_length} characters",
            field="additional_information",
            limit=limits.max_name_length,
        )
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidTensorError(
            "additional_information: a name must begin with a letter or underscore and hold only letters, digits, "
            "underscore, dot and dash",
            field="additional_information",
        )


def check_list(values: Sequence[object], limits: PayloadLimits, *, field: str) -> None:
    """Check a list of scalars against the limits. Raises InvalidTensorError, NonFiniteTensorError."""
    if len(values) > limits.max_list_length:
        raise InvalidTensorError(
            f"{field}: {len(values)} values, at most {limits.max_list_length} are allowed; send a tensor",
            field=field,
            limit=limits.max_list_length,
        )
    for value in values:
        if isinstance(value, float):
            if not limits.allow_non_finite and not math.isfinite(value):
                raise NonFiniteTensorError(f"{field}: holds NaN or infinity", field=field)
        elif isinstance(value, str) and len(value) > limits.max_text_length:
            raise InvalidTensorError(
                f"{field}: a string is longer than {limits.max_text_length} characters",
                field=field,
                limit=limits.max_text_length,
            )


def check_scalars(values: Sequence[object], *, field: str) -> None:
    """Check that a list holds only values that msgpack restores unchanged. Raises InvalidTensorError."""
    for value in values:
        if not (value is None or isinstance(value, int | float | str)):
            raise InvalidTensorError(f"{field}: a list may hold numbers, booleans, strings and null only", field=field)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
            raise InvalidTensorError(f"{field}: an integer does not fit 64 bits", field=field, limit="64 bits")


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Returns whether the value is a torch tensor."""
    import torch

    return isinstance(value, torch.Tensor)


def dtype_name(tensor: torch.Tensor, *, field: str) -> str:
    """Returns the name of the tensor's dtype in payloads. Raises InvalidTensorError if payloads cannot hold it."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise InvalidTensorError(f"{field}: dtype {name} must be one of {', '.join(DTYPES)}", field=field)
    return name


def write_bytes(tensor: torch.Tensor, *, field: str) -> bytes:
    """Returns the tensor's values, row-major, in this machine's (little-endian) byte order.

    The tensor may be on any device and have any strides, and is not changed. Its values are copied once, or twice if
    the tensor is not contiguous on the CPU.
    Raises InvalidTensorError for tensors without dense values: sparse, quantized, or on the meta device.
    """
    import torch

    if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.is_quantized:
        raise InvalidTensorError(f"{field}: only dense tensors that hold values can be sent", field=field)
    dense = tensor.detach().resolve_neg().cpu().contiguous()
    return bytes(dense.reshape(-1).view(torch.uint8).numpy().tobytes())


def read_bytes(data: bytes, shape: Sequence[int], dtype: str, device: str | torch.device) -> torch.Tensor:
    """Returns a tensor [*shape] that owns its memory on the device. Shape, dtype and length must have been checked.

    torch.frombuffer over `bytes` would be a writable view of read-only memory. So the bytes are copied into a
    bytearray, which the tensor owns and may write.
    """
    import torch

    flat = torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype))
    return flat.reshape(tuple(shape)).to(device)
