"""Encodes and decodes GenerateRequest; the data of TensorChunks is copied at most once.

The bytes are ordinary protobuf. `data` is the last field of TensorChunk. So the writer joins each chunk's head (its
fields before `data`) with the caller's buffer. The reader scans the heads and slices the data (scan.py). This is faster
than message objects: `make bench CASE=codec` measures it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NewType

from google.protobuf.message import DecodeError

from omni_proto.errors import EncodeError, WireError
from omni_proto.rpc.options import MAX_MESSAGE_BYTES
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.stage.v1.tensors_pb2 import TensorChunk
from omni_proto.tensors.scan import (
    KEY_15_BYTES,
    KEY_CHUNKS,
    KEY_CRC32C,
    KEY_LAST,
    KEY_NAME,
    KEY_ROW_OFFSET,
    KEY_ROWS,
    KEY_TENSORS,
    TensorChunkView,
    scan,
)
from omni_proto.tensors.schema import TensorSpec
from omni_proto.tensors.values import crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

EncodedChunk = NewType("EncodedChunk", bytes)
"""A whole GenerateRequest that holds TensorChunks, as bytes."""

CHUNK_BYTES: Final = 1024 * 1024
"""Size of a chunk's data. It had the highest throughput in measurements from 128 KiB to 32 MiB."""

_OUTER: Final = bytes((KEY_15_BYTES,))
_OUTER_CHUNKS: Final = bytes((KEY_TENSORS,))
_CHUNK: Final = bytes((KEY_CHUNKS,))
_LAST: Final = bytes((KEY_LAST, 1))
_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))


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
        head.append(KEY_NAME)
        head += _varint(len(raw_name))
        head += raw_name
    if row_offset:
        head.append(KEY_ROW_OFFSET)
        head += _varint(row_offset)
    if rows:
        head.append(KEY_ROWS)
        head += _varint(rows)
    if crc32c:
        head.append(KEY_CRC32C)
        head += crc32c.to_bytes(4, "little")
    if chunk.last:
        head += _LAST
    if chunk.data.nbytes:
        head.append(KEY_15_BYTES)
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
