"""Pure checks of tensor headers, values, names and checksums, without torch. Messages name the field."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import google_crc32c
import msgspec
import numpy as np

from omni_stage.errors import CorruptTensorError, InvalidTensorError, NonFiniteTensorError
from omni_stage.payloads.limits import NAME_PATTERN, PayloadLimits

ITEM_BYTES: Final[dict[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
"""The dtypes that a payload may hold, each with the bytes of one value."""

_EXPONENTS: Final[dict[str, tuple[type[np.unsignedinteger[Any]], int]]] = {
    "float64": (np.uint64, 0x7FF0_0000_0000_0000),
    "float32": (np.uint32, 0x7F80_0000),
    "float16": (np.uint16, 0x7C00),
    "bfloat16": (np.uint16, 0x7F80),
}
"""For each dtype, the unsigned type of the same size, and the mask of the exponent's bits. All bits of the exponent are
set only in NaN and infinity."""

_SCAN_BYTES: Final = 1 << 20
"""Number of bytes that check_finite checks at a time, which bounds its memory."""

EMBEDDING_DTYPES: Final = frozenset({"float32", "float16", "bfloat16"})

Scalar = int | float | bool | str | None
"""The types of a list's values."""

ScalarList = list[Scalar]


Payload = TypeVar("Payload")


def decode_payload(
    decoder: msgspec.msgpack.Decoder[Payload], data: bytes, limits: PayloadLimits, *, field: str
) -> Payload:
    """Returns the decoded payload. Checks its size, structure and checksums, but not the limits on its values.

    Raises InvalidTensorError, CorruptTensorError.
    """
    if len(data) > limits.max_payload_bytes:
        raise InvalidTensorError(
            f"{field}: {len(data)} bytes, at most {limits.max_payload_bytes} are allowed",
            field=field,
            limit=f"{limits.max_payload_bytes} bytes",
        )
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidTensorError(f"{field}: is not a payload in msgpack", field=field) from error


def compute_checksum(data: bytes) -> int:
    """Returns the CRC-32C of the bytes. It detects corruption in transit but does not authenticate the sender."""
    return int(google_crc32c.value(data))


def count_bytes(shape: Sequence[int], dtype: str, *, field: str) -> int:
    """Returns a tensor's size in bytes. Raises InvalidTensorError for an unknown dtype or a dimension below 1."""
    item = ITEM_BYTES.get(dtype)
    if item is None:
        # The value comes from the client and may hold anything, so the message does not repeat it.
        raise InvalidTensorError(f"{field}: dtype must be one of {', '.join(ITEM_BYTES)}", field=field)
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise InvalidTensorError(f"{field}: every dimension must be an integer of at least 1", field=field, limit=1)
    return math.prod(shape) * item


def check_header(shape: Sequence[int], dtype: str, data_bytes: int, *, field: str) -> None:
    """Check that the number of bytes fits shape and dtype. Raises InvalidTensorError."""
    expected = count_bytes(shape, dtype, field=field)
    if data_bytes != expected:
        raise InvalidTensorError(
            f"{field}: {data_bytes} bytes of data, but its shape and dtype need {expected}", field=field, limit=expected
        )


def check_intact(data: bytes, checksum: int, *, field: str) -> None:
    """Check the bytes against their checksum. Raises CorruptTensorError."""
    if compute_checksum(data) != checksum:
        raise CorruptTensorError(f"{field}: the checksum does not match, the data changed on its way", field=field)


def check_finite(data: bytes, dtype: str, *, field: str) -> None:
    """Refuse NaN and infinity, without a copy of the data. Integers and booleans pass. Raises NonFiniteTensorError."""
    if dtype not in _EXPONENTS:
        return
    kind, exponent = _EXPONENTS[dtype]
    bits = np.frombuffer(data, dtype=kind)
    mask = kind(exponent)
    step = _SCAN_BYTES // bits.itemsize
    for start in range(0, len(bits), step):
        if bool(((bits[start : start + step] & mask) == mask).any()):
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
