"""Reassembly: checks the chunks of an edge's tensors one by one, and copies the rows of each tensor into one buffer.

`add` either accepts a chunk completely, or raises a TensorError and accepts no rows. Damaged data is never accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from omni_proto.errors import (
    CorruptTensorError,
    InvalidTensorError,
    NonFiniteTensorError,
    OversizedTensorError,
    SchemaError,
)
from omni_proto.stage.v1.tensors_pb2 import TensorHeader
from omni_proto.tensors.codec import TensorChunkView
from omni_proto.tensors.dtypes import dtype_from_proto, dtype_info
from omni_proto.tensors.schema import TensorSchema, TensorSpec
from omni_proto.tensors.values import allocate, crc32c, is_boolean, is_finite, to_array

if TYPE_CHECKING:
    import numpy.typing as npt

Reserve = Callable[[int], None]
"""Called with the number of bytes by which a buffer is about to grow; raises an error to refuse."""

FIRST_CAPACITY_BYTES: Final = 64 * 1024 * 1024
"""Buffers up to this size are allocated at full size: growing would copy, and unused pages cost no memory."""


@dataclass(frozen=True, slots=True, eq=False)
class ReceivedTensor:
    """A tensor [rows, *row_shape] on the CPU: the received rows, or some of them."""

    spec: TensorSpec
    """Name, dtype and row shape."""
    rows: int
    """Number of rows received."""
    data: memoryview
    """The elements as bytes, in C order, little-endian; writable unless empty. From `TensorAssembler.since`, they are a
    view of the assembler's buffer. From `finish`, they are aligned and not shared with anything."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, *row_shape]."""
        return (self.rows, *self.spec.row_shape)

    def to_numpy(self) -> npt.NDArray[Any]:
        """Returns the tensor as an array that shares data; bfloat16 as its bits in uint16."""
        return to_array(self.data, dtype_info(self.spec.dtype), self.shape)


class TensorAssembler:
    """Reassembles one tensor of at most max_rows rows.

    Beyond 64 MiB the buffer grows by doubling, so that a large max_rows costs no memory until rows arrive. Raises
    OversizedTensorError if max_rows is negative.
    """

    def __init__(
        self, spec: TensorSpec, max_rows: int, *, check_finite: bool = True, reserve: Reserve | None = None
    ) -> None:
        if max_rows < 0:
            raise OversizedTensorError.of(spec.name, f"max_rows must be 0 or more, got {max_rows}")
        self.spec = spec
        self.max_rows = max_rows
        self._dtype = dtype_info(spec.dtype)
        self._row_bytes = spec.row_bytes
        self._check_finite = check_finite and self._dtype.is_float
        self._reserve = reserve
        self._buffer = memoryview(b"")
        self._rows = 0
        self._complete = False

    @property
    def rows(self) -> int:
        """Rows received so far."""
        return self._rows

    @property
    def complete(self) -> bool:
        """Whether the last chunk was received."""
        return self._complete

    @property
    def max_bytes(self) -> int:
        """Bytes of max_rows rows."""
        return self.max_rows * self._row_bytes

    def add(self, chunk: TensorChunkView) -> None:
        """Add the next chunk, copying its data. Raises a TensorError, or the error that reserve raises."""
        self._check_place(chunk)
        if crc32c(chunk.data) != chunk.crc32c:
            raise CorruptTensorError.of(
                self.spec.name,
                f"CRC-32C of rows {chunk.row_offset} to {chunk.row_offset + chunk.rows} is wrong; "
                "the data was damaged on its way, or the sender set no checksum",
            )
        start, end = self._rows * self._row_bytes, (self._rows + chunk.rows) * self._row_bytes
        if chunk.rows:
            self._grow(end)
            part = self._buffer[start:end]
            part[:] = chunk.data
            self._check_values(part, chunk.row_offset)
            self._rows += chunk.rows
        self._complete = chunk.last

    def since(self, row: int) -> ReceivedTensor:
        """Returns the received rows, starting at `row`. They share the buffer; received rows never change."""
        first = min(row, self._rows)
        part = self._buffer[first * self._row_bytes : self._rows * self._row_bytes]
        return ReceivedTensor(self.spec, self._rows - first, part)

    def finish(self) -> ReceivedTensor:
        """Returns the tensor and releases its buffer. Raises CorruptTensorError if the last chunk is missing."""
        if not self._complete:
            raise CorruptTensorError.of(
                self.spec.name, f"the input ended after {self._rows} rows, without a last chunk"
            )
        buffer, self._buffer = self._buffer, memoryview(b"")
        return ReceivedTensor(self.spec, self._rows, buffer[: self._rows * self._row_bytes])

    def _check_place(self, chunk: TensorChunkView) -> None:
        name, next_row, end = self.spec.name, self._rows, chunk.row_offset + chunk.rows
        if self._complete:
            raise CorruptTensorError.of(name, f"a chunk of row {chunk.row_offset} came after the last one")
        if len(chunk.data) != chunk.rows * self._row_bytes:
            raise CorruptTensorError.of(
                name, f"{len(chunk.data)} bytes of data for {chunk.rows} rows of {self._row_bytes} bytes"
            )
        if chunk.row_offset > next_row:
            raise CorruptTensorError.of(name, f"row {chunk.row_offset} came when row {next_row} was due")
        if chunk.row_offset < next_row:
            if end <= next_row:
                raise CorruptTensorError.of(
                    name, f"rows {chunk.row_offset} to {end} came again; row {next_row} was due"
                )
            raise CorruptTensorError.of(name, f"rows {chunk.row_offset} to {next_row} came again, with new ones")
        if chunk.rows == 0 and not chunk.last:
            raise InvalidTensorError.of(name, "a chunk without rows must be the last one")
        if end > self.max_rows:
            raise OversizedTensorError.of(
                name, f"row {end - 1} is beyond the {self.max_rows} rows announced", limit=f"{self.max_rows} rows"
            )

    def _check_values(self, data: memoryview, row: int) -> None:
        if self._check_finite and not is_finite(data, self._dtype):
            raise NonFiniteTensorError.of(self.spec.name, f"the rows from {row} on hold NaN or infinity")
        if self._dtype.name == "bool" and not is_boolean(data):
            raise InvalidTensorError.of(self.spec.name, f"the rows from {row} on hold bytes other than 0 and 1")

    def _grow(self, needed: int) -> None:
        capacity = len(self._buffer)
        if needed <= capacity:
            return
        wanted = min(self.max_bytes, max(needed, 2 * capacity, FIRST_CAPACITY_BYTES))
        if self._reserve is not None:
            self._reserve(wanted - capacity)
        grown = allocate(wanted)
        used = self._rows * self._row_bytes
        grown[:used] = self._buffer[:used]
        self._buffer = grown


class EdgeAssembler:
    """Reassembles every tensor of an edge.

    headers come from Start. Raises InvalidTensorError if they do not match the schema exactly, and
    OversizedTensorError if a tensor announces more than max_rows rows, or all tensors together announce more than
    max_bytes.
    """

    def __init__(
        self,
        schema: TensorSchema,
        headers: Iterable[TensorHeader],
        *,
        max_rows: int | None = None,
        max_bytes: int | None = None,
        check_finite: bool = True,
        reserve: Reserve | None = None,
    ) -> None:
        self.schema = schema
        rows = check_headers(schema, headers, max_rows=max_rows, max_bytes=max_bytes)
        self._tensors = {
            spec.name: TensorAssembler(spec, rows[spec.name], check_finite=check_finite, reserve=reserve)
            for spec in schema.tensors
        }
        self._received_bytes = 0
        self._taken = dict.fromkeys(self._tensors, 0)

    @property
    def max_bytes(self) -> int:
        """Bytes that the headers announce, which admission reserves."""
        return sum(tensor.max_bytes for tensor in self._tensors.values())

    @property
    def received_bytes(self) -> int:
        """Bytes of tensor data received so far."""
        return self._received_bytes

    @property
    def rows(self) -> Mapping[str, int]:
        """Rows received so far, by tensor."""
        return MappingProxyType({name: tensor.rows for name, tensor in self._tensors.items()})

    @property
    def complete(self) -> bool:
        """Whether the last chunk of every tensor was received."""
        return all(tensor.complete for tensor in self._tensors.values())

    @property
    def complete_tensors(self) -> frozenset[str]:
        """Names of the tensors whose last chunk was received."""
        return frozenset(name for name, tensor in self._tensors.items() if tensor.complete)

    def take(self) -> dict[str, ReceivedTensor]:
        """Returns the rows received since the last take(), by tensor, for a reader that processes them as they come."""
        fresh = {
            name: tensor.since(self._taken[name])
            for name, tensor in self._tensors.items()
            if tensor.rows > self._taken[name]
        }
        self._taken = {name: tensor.rows for name, tensor in self._tensors.items()}
        return fresh

    def add(self, chunk: TensorChunkView) -> None:
        """Add the next chunk of any tensor. Raises a TensorError, or the error that reserve raises."""
        tensor = self._tensors.get(chunk.name)
        if tensor is None:
            raise InvalidTensorError.of(
                chunk.name[:64], f"no header announced it; known are {', '.join(self.schema.names)}"
            )
        tensor.add(chunk)
        self._received_bytes += len(chunk.data)

    def finish(self) -> dict[str, ReceivedTensor]:
        """Returns the tensors by name, after End. Raises CorruptTensorError that names the first incomplete one."""
        return {name: tensor.finish() for name, tensor in self._tensors.items()}


def check_headers(
    schema: TensorSchema,
    headers: Iterable[TensorHeader],
    *,
    max_rows: int | None = None,
    max_bytes: int | None = None,
) -> dict[str, int]:
    """Check the headers of Start. Returns max_rows of each tensor; allocates no buffers.

    Raises InvalidTensorError or OversizedTensorError.
    """
    rows: dict[str, int] = {}
    total = 0
    for header in headers:
        name = header.name[:64]
        if header.name not in schema.names:
            raise InvalidTensorError.of(
                name, f"schema {schema.id!r} has no such tensor; it has {', '.join(schema.names)}"
            )
        if header.name in rows:
            raise InvalidTensorError.of(name, "its header came twice")
        spec = schema.spec(header.name)
        try:
            dtype = dtype_from_proto(header.dtype).name
        except SchemaError as error:
            raise InvalidTensorError.of(name, str(error)) from error
        if (dtype, tuple(header.row_shape)) != (spec.dtype, spec.row_shape):
            raise InvalidTensorError.of(
                name,
                f"header says {dtype}{list(header.row_shape[:8])}, schema {schema.id!r} says {spec.dtype}"
                f"{list(spec.row_shape)}",
            )
        if max_rows is not None and header.max_rows > max_rows:
            raise OversizedTensorError.of(
                name, f"max_rows {header.max_rows} is over {max_rows}; shorten the input", limit=f"{max_rows} rows"
            )
        total += header.max_rows * spec.row_bytes
        if max_bytes is not None and total > max_bytes:
            raise OversizedTensorError.of(
                name, f"the tensors announce over {max_bytes} bytes; shorten the input", limit=f"{max_bytes} bytes"
            )
        rows[header.name] = header.max_rows
    missing = [name for name in schema.names if name not in rows]
    if missing:
        raise InvalidTensorError.of(missing[0], f"schema {schema.id!r} has it, but no header came")
    return rows
