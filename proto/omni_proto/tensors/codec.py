"""GenerateRequest on the wire: TensorChunks are written and read without copying their data more than once.

The bytes are ordinary protobuf. `data` is the highest field of TensorChunk, and `tensor` of GenerateRequest, so that
the writer joins a short head with the caller's buffer, and the reader scans the head and slices the rest (measured:
1.7x over message objects). Whatever the scan does not expect - other messages, another field order, unknown or repeated
fields - goes to the protobuf parser: the scan is a short cut that changes no meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

from google.protobuf.message import DecodeError

from omni_proto.errors import EncodeError, WireError
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest, GenerateResponse
from omni_proto.tensors.schema import TensorSpec
from omni_proto.tensors.values import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

EncodedChunk = NewType("EncodedChunk", bytes)
"""A whole GenerateRequest that holds one TensorChunk, as bytes."""

CHUNK_BYTES: Final = 1024 * 1024
"""Size of a chunk's data that moved most bytes a second; shared/research measured 128 KiB to 32 MiB."""

# Keys of the fields, (number << 3) | wire type; each fits one byte.
_KEY_NAME: Final = 0x0A
_KEY_ROW_OFFSET: Final = 0x10
_KEY_ROWS: Final = 0x18
_KEY_CRC32C: Final = 0x25
_KEY_LAST: Final = 0x28
_KEY_15_BYTES: Final = 0x7A
"""Both GenerateRequest.tensor and TensorChunk.data."""
_OUTER: Final = bytes((_KEY_15_BYTES,))
_LAST: Final = bytes((_KEY_LAST, 1))
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


@dataclass(frozen=True, slots=True)
class TensorChunkView:
    """A TensorChunk whose data is a slice of the message that it came in."""

    name: str
    """Name of the tensor."""
    row_offset: int
    """Number of the first row."""
    rows: int
    """Number of rows in data."""
    crc32c: int
    """CRC-32C of data, as the sender computed it."""
    last: bool
    """Whether this is the tensor's last chunk."""
    data: memoryview
    """The rows: bytes, read-only, not aligned; keeps the whole message alive."""


def as_byte_view(data: Buffer) -> memoryview:
    """A flat view of a contiguous buffer's bytes, without a copy. Raises EncodeError if it is not contiguous."""
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise EncodeError(f"tensor data must be a C-contiguous buffer of plain elements: {error}") from error


def encode_tensor_chunk(name: str, row_offset: int, rows: int, crc32c: int, last: bool, data: Buffer) -> EncodedChunk:
    """A GenerateRequest with one TensorChunk; the only copy of data is the one into the message.

    Equal to what protobuf's own serializer writes. Raises EncodeError if a value does not fit its field or the message
    is over MAX_MESSAGE_BYTES.
    """
    if not (0 <= row_offset < 2**64 and 0 <= rows < 2**32 and 0 <= crc32c < 2**32):
        raise EncodeError(f"tensor {name!r}: row_offset, rows or crc32c does not fit its field")
    view = as_byte_view(data)
    size = view.nbytes
    raw_name = name.encode("utf-8")
    head = bytearray()
    if raw_name:
        head.append(_KEY_NAME)
        head += _varint(len(raw_name))
        head += raw_name
    if row_offset:
        head.append(_KEY_ROW_OFFSET)
        head += _varint(row_offset)
    if rows:
        head.append(_KEY_ROWS)
        head += _varint(rows)
    if crc32c:
        head.append(_KEY_CRC32C)
        head += crc32c.to_bytes(4, "little")
    if last:
        head += _LAST
    if size:
        head.append(_KEY_15_BYTES)
        head += _varint(size)
    outer = _varint(len(head) + size)
    total = 1 + len(outer) + len(head) + size
    if total > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"tensor {name!r}: the message has {total} bytes, at most {MAX_MESSAGE_BYTES}; send fewer rows"
        )
    return EncodedChunk(b"".join((_OUTER, outer, head, view)))


def encode_rows(
    spec: TensorSpec, data: Buffer, *, first_row: int = 0, last: bool = True, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[EncodedChunk]:
    """The rows of a buffer [n, *row_shape] as messages of about chunk_bytes, whole rows each, with their checksums.

    first_row is the number of the buffer's first row; last says whether the tensor ends with this buffer, which may
    then have no rows. Lazy, so that flow control bounds what is in memory; the buffer must not change meanwhile.
    Raises EncodeError if the buffer is not whole rows.
    """
    view = as_byte_view(data)
    row_bytes = spec.row_bytes
    rows, rest = divmod(view.nbytes, row_bytes)
    if rest:
        raise EncodeError(f"tensor {spec.name!r}: {view.nbytes} bytes are not whole rows of {row_bytes} bytes")
    if rows == 0 and last:
        yield encode_tensor_chunk(spec.name, first_row, 0, 0, True, b"")
    step = max(1, chunk_bytes // row_bytes)
    for start in range(0, rows, step):
        end = min(start + step, rows)
        part = view[start * row_bytes : end * row_bytes]
        ends = last and end == rows
        yield encode_tensor_chunk(spec.name, first_row + start, end - start, crc32c(part), ends, part)


def decode_generate_request(data: bytes) -> GenerateRequest | TensorChunkView:
    """One message of the caller; a TensorChunk as a view into data.

    Raises WireError if data is not a GenerateRequest. A GenerateRequest without any message set is returned as it is.
    """
    chunk = _scan_tensor_chunk(data)
    if chunk is not None:
        return chunk
    try:
        message = GenerateRequest.FromString(data)
    except DecodeError as error:
        raise WireError(f"a message of {len(data)} bytes is not a GenerateRequest: truncated or damaged") from error
    if message.WhichOneof("message") != "tensor":
        return message
    tensor = message.tensor
    return TensorChunkView(
        tensor.name, tensor.row_offset, tensor.rows, tensor.crc32c, tensor.last, memoryview(tensor.data)
    )


def serialize_generate_request(message: GenerateRequest | EncodedChunk) -> bytes:
    """Serializer of a call: encoded chunks pass as they are."""
    if isinstance(message, bytes):
        return message
    return message.SerializeToString()


deserialize_generate_request = decode_generate_request
"""Deserializer of a call: see decode_generate_request."""


def serialize_generate_response(message: GenerateResponse) -> bytes:
    """Serializer of the answers: plain protobuf, audio is small beside tensors."""
    return message.SerializeToString()


def deserialize_generate_response(data: bytes) -> GenerateResponse:
    """Deserializer of the answers. Raises WireError."""
    try:
        return GenerateResponse.FromString(data)
    except DecodeError as error:
        raise WireError(f"a message of {len(data)} bytes is not a GenerateResponse: truncated or damaged") from error


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Value and the position behind it. Raises IndexError at the end of data, ValueError over 64 bits."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError("varint is longer than 64 bits")
    if value >= 2**64:
        raise ValueError("varint is longer than 64 bits")
    return value, position


def _scan_tensor_chunk(data: bytes) -> TensorChunkView | None:
    """The chunk, if data is exactly one TensorChunk with its fields in order and each at most once; else None."""
    if not data or data[0] != _KEY_15_BYTES:
        return None
    try:
        return _scan_fields(data)
    except (IndexError, ValueError):  # UnicodeDecodeError is a ValueError
        return None  # the protobuf parser decides what it is


def _scan_fields(data: bytes) -> TensorChunkView | None:
    size = len(data)
    length, position = _read_varint(data, 1)
    if position + length != size:
        return None
    name, row_offset, rows, checksum, last = "", 0, 0, 0, False
    previous = 0
    while position < size:
        key = data[position]
        if key <= previous:
            return None
        previous = key
        position += 1
        if key == _KEY_15_BYTES:
            length, position = _read_varint(data, position)
            if position + length != size:
                return None
            return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(data)[position:])
        if key == _KEY_NAME:
            length, position = _read_varint(data, position)
            if position + length > size:
                return None
            name = data[position : position + length].decode("utf-8")
            position += length
        elif key == _KEY_ROW_OFFSET:
            row_offset, position = _read_varint(data, position)
        elif key == _KEY_ROWS:
            rows, position = _read_varint(data, position)
            if rows >= 2**32:
                return None
        elif key == _KEY_CRC32C:
            if position + 4 > size:
                return None
            checksum = int.from_bytes(data[position : position + 4], "little")
            position += 4
        elif key == _KEY_LAST:
            number, position = _read_varint(data, position)
            last = number != 0
        else:
            return None
    return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(b""))
