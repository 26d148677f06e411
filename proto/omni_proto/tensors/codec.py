"""Encodes and decodes GenerateRequest; the data of TensorChunks is copied at most once.

The bytes are ordinary protobuf. `data` is the last field of TensorChunk. So the writer joins each chunk's head (its
fields before `data`) with the caller's buffer. The reader scans the heads and slices the data, without message objects;
whatever the scan does not expect - other messages, another field order, unknown or repeated fields - is left to the
protobuf parser. This is faster than message objects: `make bench CASE=codec` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NewType

from google.protobuf.message import DecodeError

from omni_proto.errors import EncodeError, WireError
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.stage.v1.tensors_pb2 import TensorChunk
from omni_proto.tensors.schema import TensorSpec
from omni_proto.tensors.values import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

EncodedChunk = NewType("EncodedChunk", bytes)
"""A whole GenerateRequest that holds TensorChunks, as bytes."""

CHUNK_BYTES: Final = 1024 * 1024
"""Size of a chunk's data. It had the highest throughput in measurements from 128 KiB to 32 MiB."""

# Keys of the fields: (number << 3) | wire type. Each fits in one byte.
_KEY_NAME: Final = 0x0A
_KEY_ROW_OFFSET: Final = 0x10
_KEY_ROWS: Final = 0x18
_KEY_CRC32C: Final = 0x25
_KEY_LAST: Final = 0x28
_KEY_15_BYTES: Final = 0x7A
"""GenerateRequest.tensor and TensorChunk.data: both have field number 15."""
_KEY_TENSORS: Final = 0x72
"""GenerateRequest.tensors."""
_KEY_CHUNKS: Final = 0x0A
"""TensorChunks.chunks."""

_OUTER: Final = bytes((_KEY_15_BYTES,))
_OUTER_CHUNKS: Final = bytes((_KEY_TENSORS,))
_CHUNK: Final = bytes((_KEY_CHUNKS,))
_LAST: Final = bytes((_KEY_LAST, 1))
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


@dataclass(slots=True)
class TensorChunkView:
    """A TensorChunk whose data is a slice: of the received message, or of the sender's buffer.

    Not frozen: a frozen dataclass takes three times as long to make, and there may be one for every row.
    """

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
    """The rows as bytes, not aligned. Keeps the whole message or buffer alive. Read-only if sliced from a message."""


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns the value and the position after it. Raises IndexError at the end of data, ValueError over 64 bits."""
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


def scan(data: bytes) -> TensorChunkView | tuple[TensorChunkView, ...] | None:
    """Returns the chunk or chunks in data.

    Returns None if data contains anything else, or if the fields of a chunk are not in order or repeated.
    """
    if not data or data[0] not in (_KEY_15_BYTES, _KEY_TENSORS):
        return None
    try:
        length, position = _read_varint(data, 1)
        if position + length != len(data):
            return None
        return _scan_chunk(data, position, len(data)) if data[0] == _KEY_15_BYTES else _scan_chunks(data, position)
    except (IndexError, ValueError):  # UnicodeDecodeError is a ValueError
        return None  # leave it to the protobuf parser


def _scan_chunks(data: bytes, position: int) -> tuple[TensorChunkView, ...] | None:
    chunks = []
    while position < len(data):
        if data[position] != _KEY_CHUNKS:
            return None
        length, position = _read_varint(data, position + 1)
        end = position + length
        chunk = _scan_chunk(data, position, end) if end <= len(data) else None
        if chunk is None:
            return None
        chunks.append(chunk)
        position = end
    return tuple(chunks)


def _scan_chunk(data: bytes, position: int, size: int) -> TensorChunkView | None:
    """Returns the chunk in data[position:size], or None if it does not have the expected form."""
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
            return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(data)[position:size])
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
    # A truncated varint would have been read past the end of the chunk.
    return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(b"")) if position == size else None


def as_byte_view(data: Buffer) -> memoryview:
    """Returns a flat view of a contiguous buffer's bytes, without a copy. Raises EncodeError if not contiguous."""
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError, BufferError) as error:
        raise EncodeError(f"tensor data must be a C-contiguous buffer of plain elements: {error}") from error


def encode_tensor_chunk(name: str, row_offset: int, rows: int, crc32c: int, last: bool, data: Buffer) -> EncodedChunk:
    """Returns a GenerateRequest with one TensorChunk; data is copied once, into the message.

    Protobuf's own serializer would write the same bytes. Raises EncodeError if a value does not fit its field or the
    message is larger than MAX_MESSAGE_BYTES.
    """
    return encode_tensor_chunks((TensorChunkView(name, row_offset, rows, crc32c, last, as_byte_view(data)),))


def encode_tensor_chunks(chunks: Sequence[TensorChunkView]) -> EncodedChunk:
    """Returns a GenerateRequest with all chunks. There must be at least one chunk.

    A single chunk becomes `tensor`, several become `tensors`. Their data is copied once, into the message.
    Raises EncodeError as encode_tensor_chunk does.
    """
    parts: list[bytes | bytearray | memoryview] = []
    inner = 0
    for chunk in chunks:
        head = _encode_head(chunk)
        size = len(head) + chunk.data.nbytes
        if len(chunks) > 1:
            length = _varint(size)
            parts += (_CHUNK, length)
            inner += 1 + len(length)
        parts += (head, chunk.data)
        inner += size
    outer = _varint(inner)
    total = 1 + len(outer) + inner
    if total > MAX_MESSAGE_BYTES:
        raise EncodeError(
            f"tensor {chunks[0].name!r}: the message has {total} bytes, more than the limit of {MAX_MESSAGE_BYTES}; "
            "send fewer rows"
        )
    return EncodedChunk(b"".join((_OUTER if len(chunks) == 1 else _OUTER_CHUNKS, outer, *parts)))


def _encode_head(chunk: TensorChunkView) -> bytearray:
    """Returns the bytes of a TensorChunk before its data. Raises EncodeError if a value does not fit its field."""
    row_offset, rows, crc32c = chunk.row_offset, chunk.rows, chunk.crc32c
    if not (0 <= row_offset < 2**64 and 0 <= rows < 2**32 and 0 <= crc32c < 2**32):
        raise EncodeError(f"tensor {chunk.name!r}: row_offset, rows or crc32c does not fit its field")
    raw_name = chunk.name.encode("utf-8")
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
    if chunk.last:
        head += _LAST
    if chunk.data.nbytes:
        head.append(_KEY_15_BYTES)
        head += _varint(chunk.data.nbytes)
    return head


def encode_rows(
    spec: TensorSpec, data: Buffer, *, first_row: int = 0, last: bool = True, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[EncodedChunk]:
    """Yields the rows of a buffer [n, *row_shape] as messages of about chunk_bytes, each of whole rows with a checksum.

    first_row is the number of the buffer's first row. last says whether the tensor ends with this buffer, which may
    then have no rows. Messages are made one at a time, so that flow control bounds the memory; the buffer must not
    change meanwhile. Raises EncodeError if the buffer does not hold whole rows.
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


def decode_generate_request(data: bytes) -> GenerateRequest | TensorChunkView | tuple[TensorChunkView, ...]:
    """Returns one message of the caller. A TensorChunk, or each chunk of a TensorChunks message, is returned as a
    TensorChunkView.

    Raises WireError if data is not a GenerateRequest. A GenerateRequest in which no message is set is returned as is.
    """
    scanned = scan(data)
    if scanned is not None:
        return scanned
    try:
        message = GenerateRequest.FromString(data)
    except DecodeError as error:
        raise WireError(f"a message of {len(data)} bytes is not a GenerateRequest: truncated or damaged") from error
    kind = message.WhichOneof("message")
    if kind == "tensor":
        return _view(message.tensor)
    return tuple(map(_view, message.tensors.chunks)) if kind == "tensors" else message


def _view(chunk: TensorChunk) -> TensorChunkView:
    return TensorChunkView(chunk.name, chunk.row_offset, chunk.rows, chunk.crc32c, chunk.last, memoryview(chunk.data))


def serialize_generate_request(message: GenerateRequest | EncodedChunk) -> bytes:
    """Serialize a request message; encoded chunks are returned unchanged."""
    if isinstance(message, bytes):
        return message
    return message.SerializeToString()


def _varint(value: int) -> bytes:
    if value <= 0x7F:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
