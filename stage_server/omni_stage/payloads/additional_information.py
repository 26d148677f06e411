"""AdditionalInformationPayload: named tensors and lists that travel with a request into the engine's process, and the
keys under which they travel.

vLLM passes SamplingParams.extra_args and PoolingParams.extra_kwargs unchanged to the scheduler and the worker. They may
hold only values that msgpack can encode, such as bytes, but not tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from omni_proto.tensors import crc32c
from omni_stage.errors import InvalidTensorError
from omni_stage.payloads.checks import (
    DEFAULT_LIMITS,
    PayloadLimits,
    Scalar,
    ScalarList,
    check_finite,
    check_header,
    check_intact,
    check_list,
    check_name,
    check_scalars,
    check_size,
    dtype_name,
    is_tensor,
    read_bytes,
    write_bytes,
)

if TYPE_CHECKING:
    import torch


OMNI_PAYLOAD_KEY: Final = "omni"
"""bytes: AdditionalInformationPayload.to_bytes()."""

OMNI_ROWS_KEY: Final = "omni_rows"
"""True: the runner returns the rows that it captures for this request."""

OMNI_LATE_KEY: Final = "omni_late"
"""float: seconds by which an autoregressive request stands later in the queue than its arrival, because its client has
other requests in the stage (service/guard/admission.py)."""

OMNI_DUE_KEY: Final = "omni_due"
"""float: the time at which the result of a diffusion request is due, in seconds of time.monotonic(), a clock that all
processes of a machine share. Among requests of equal priority, the request with the earliest due time is scheduled
first. A request without this key is due on arrival."""


_FIELD = "additional_information"


class AdditionalInformationEntry(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Either a tensor or a list of scalars, never both. Construction checks that it is consistent and intact."""

    tensor_data: bytes | None = None
    """Row-major, little-endian."""
    tensor_shape: list[int] | None = None
    tensor_dtype: str | None = None
    """One of `omni_proto.tensors.DTYPES`."""
    tensor_checksum: int | None = None
    """CRC-32C of tensor_data."""
    list_data: list[Scalar] | None = None

    def __post_init__(self) -> None:
        """Check that exactly one form is set and complete. Raises InvalidTensorError, CorruptTensorError."""
        if (self.tensor_data is None) == (self.list_data is None):
            raise InvalidTensorError(f"{_FIELD}: an entry needs exactly one of tensor_data and list_data", field=_FIELD)
        tensor = (self.tensor_shape, self.tensor_dtype, self.tensor_checksum)
        if self.list_data is not None:
            if tensor != (None, None, None):
                raise InvalidTensorError(f"{_FIELD}: a list has no tensor_shape, dtype or checksum", field=_FIELD)
            check_scalars(self.list_data, field=_FIELD)
            return
        if self.tensor_data is None or self.tensor_shape is None or self.tensor_dtype is None:
            raise InvalidTensorError(f"{_FIELD}: tensor_data needs tensor_shape and tensor_dtype", field=_FIELD)
        if self.tensor_checksum is None:
            raise InvalidTensorError(f"{_FIELD}: tensor_data needs tensor_checksum", field=_FIELD)
        check_header(self.tensor_shape, self.tensor_dtype, len(self.tensor_data), field=_FIELD)
        check_intact(self.tensor_data, self.tensor_checksum, field=_FIELD)

    @classmethod
    def from_tensor(
        cls, tensor: torch.Tensor, limits: PayloadLimits = DEFAULT_LIMITS, *, field: str = _FIELD
    ) -> AdditionalInformationEntry:
        """Returns an entry with the values of a tensor on any device. `field` is the entry's name in errors.

        Checks the limits. Raises InvalidTensorError, NonFiniteTensorError.
        """
        dtype = dtype_name(tensor, field=field)
        shape = list(tensor.shape)
        check_size(shape, dtype, limits, field=field)
        data = write_bytes(tensor, field=field)
        if not limits.allow_non_finite:
            check_finite(data, dtype, field=field)
        return cls(tensor_data=data, tensor_shape=shape, tensor_dtype=dtype, tensor_checksum=crc32c(data))

    @classmethod
    def from_list(
        cls, values: Sequence[Scalar], limits: PayloadLimits = DEFAULT_LIMITS, *, field: str = _FIELD
    ) -> AdditionalInformationEntry:
        """Returns an entry with a list of scalars. Checks the limits.

        Raises InvalidTensorError, NonFiniteTensorError.
        """
        check_list(values, limits, field=field)
        return cls(list_data=list(values))

    @property
    def is_tensor(self) -> bool:
        """Whether the entry holds a tensor; else it holds a list."""
        return self.tensor_data is not None

    @property
    def nbytes(self) -> int:
        """Bytes of a tensor's values; 0 for a list."""
        return 0 if self.tensor_data is None else len(self.tensor_data)

    def to_tensor(self, device: str | torch.device = "cpu") -> torch.Tensor:
        """Returns a writable copy of the tensor on the device. Raises InvalidTensorError if the entry is a list."""
        if self.tensor_data is None or self.tensor_shape is None or self.tensor_dtype is None:
            raise InvalidTensorError(f"{_FIELD}: an entry is a list where a tensor is expected", field=_FIELD)
        return read_bytes(self.tensor_data, self.tensor_shape, self.tensor_dtype, device)

    def to_list(self) -> ScalarList:
        """Returns a copy of the list. Raises InvalidTensorError if the entry is a tensor."""
        if self.list_data is None:
            raise InvalidTensorError(f"{_FIELD}: an entry is a tensor where a list is expected", field=_FIELD)
        return list(self.list_data)

    def value(self) -> torch.Tensor | ScalarList:
        """Returns the tensor on the CPU, or the list."""
        return self.to_list() if self.list_data is not None else self.to_tensor()

    def check(self, limits: PayloadLimits = DEFAULT_LIMITS, *, field: str = _FIELD) -> None:
        """Check size and values against the limits. Raises InvalidTensorError, NonFiniteTensorError."""
        if self.list_data is not None:
            check_list(self.list_data, limits, field=field)
        elif self.tensor_data is not None and self.tensor_shape is not None and self.tensor_dtype is not None:
            check_size(self.tensor_shape, self.tensor_dtype, limits, field=field)
            if not limits.allow_non_finite:
                check_finite(self.tensor_data, self.tensor_dtype, field=field)

    def __repr__(self) -> str:
        """Returns length, or shape and dtype, but no values: values must not reach a log."""
        if self.list_data is not None:
            return f"AdditionalInformationEntry(list of {len(self.list_data)})"
        return f"AdditionalInformationEntry(shape={self.tensor_shape}, dtype={self.tensor_dtype!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns what `__repr__` returns, without values, for the library rich."""
        return [("form", repr(self))]


class AdditionalInformationPayload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Named entries of one request. They travel as msgpack, under OMNI_PAYLOAD_KEY in the request's parameters."""

    entries: dict[str, AdditionalInformationEntry]

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, torch.Tensor | Sequence[Scalar]], limits: PayloadLimits = DEFAULT_LIMITS
    ) -> AdditionalInformationPayload:
        """Returns a payload of tensors (any device) and lists. Raises InvalidTensorError, NonFiniteTensorError."""
        entries: dict[str, AdditionalInformationEntry] = {}
        for name, value in values.items():
            check_name(name, limits)
            field = f"{_FIELD}.{name}"
            if isinstance(value, list | tuple):
                entries[name] = AdditionalInformationEntry.from_list(value, limits, field=field)
            elif is_tensor(value):
                entries[name] = AdditionalInformationEntry.from_tensor(value, limits, field=field)
            else:
                raise InvalidTensorError(f"{field}: must be a tensor or a list of scalars", field=field)
        payload = cls(entries)
        payload.check_entries(limits)
        return payload

    def to_bytes(self) -> bytes:
        """Returns the payload as msgpack. Copies the data once."""
        return _ENCODER.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> AdditionalInformationPayload:
        """Read and check a payload: msgpack, structure, checksums, limits.

        For any bytes it raises only InvalidTensorError, NonFiniteTensorError or CorruptTensorError.
        """
        if len(data) > limits.max_payload_bytes:
            raise InvalidTensorError(
                f"{_FIELD}: {len(data)} bytes, at most {limits.max_payload_bytes} are allowed",
                field=_FIELD,
                limit=f"{limits.max_payload_bytes} bytes",
            )
        try:
            payload = _DECODER.decode(data)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise InvalidTensorError(f"{_FIELD}: is not a payload in msgpack", field=_FIELD) from error
        payload.check(limits)
        return payload

    def check(self, limits: PayloadLimits = DEFAULT_LIMITS) -> None:
        """Check names, number, sizes and values against the limits. Raises InvalidTensorError, NonFiniteTensorError."""
        self.check_entries(limits)
        for name, entry in self.entries.items():
            entry.check(limits, field=f"{_FIELD}.{name}")

    def check_entries(self, limits: PayloadLimits = DEFAULT_LIMITS) -> None:
        """Check the number of entries, their names and the sum of their bytes, but not their values.

        Raises InvalidTensorError.
        """
        if len(self.entries) > limits.max_entries:
            raise InvalidTensorError(
                f"{_FIELD}: {len(self.entries)} entries, at most {limits.max_entries} are allowed",
                field=_FIELD,
                limit=limits.max_entries,
            )
        for name in self.entries:
            check_name(name, limits)
        if self.nbytes > limits.max_payload_bytes:
            raise InvalidTensorError(
                f"{_FIELD}: {self.nbytes} bytes, at most {limits.max_payload_bytes} are allowed; shorten the input",
                field=_FIELD,
                limit=f"{limits.max_payload_bytes} bytes",
            )

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors' values."""
        return sum(entry.nbytes for entry in self.entries.values())

    def __contains__(self, name: object) -> bool:
        """Returns whether there is an entry of this name."""
        return name in self.entries

    def __repr__(self) -> str:
        """Returns names, lengths, shapes and dtypes, but no values: values must not reach a log."""
        return f"AdditionalInformationPayload({self.entries!r})"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns what `__repr__` returns, without values, for the library rich."""
        return [("entries", repr(self.entries))]

    def tensor(self, name: str, device: str | torch.device = "cpu") -> torch.Tensor:
        """Returns a copy of the named tensor on the device. Raises InvalidTensorError if it is absent or a list."""
        entry = self._entry(name)
        if not entry.is_tensor:
            raise InvalidTensorError(f"{_FIELD}.{name}: is a list, a tensor is expected", field=f"{_FIELD}.{name}")
        return entry.to_tensor(device)

    def list(self, name: str) -> ScalarList:
        """Returns the named list. Raises InvalidTensorError if it is absent or a tensor."""
        entry = self._entry(name)
        if entry.is_tensor:
            raise InvalidTensorError(f"{_FIELD}.{name}: is a tensor, a list is expected", field=f"{_FIELD}.{name}")
        return entry.to_list()

    def _entry(self, name: str) -> AdditionalInformationEntry:
        entry = self.entries.get(name)
        if entry is None:
            raise InvalidTensorError(f"{_FIELD}.{name}: is missing", field=f"{_FIELD}.{name}")
        return entry


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(AdditionalInformationPayload)
