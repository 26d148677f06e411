"""Finds the chunks of tensors in the bytes of a GenerateRequest, without a copy and without message objects.

The scan is only an optimization: everything that it does not expect - other messages, another field order, unknown or
repeated fields - is left to the protobuf parser.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Keys of the fields: (number << 3) | wire type. Each fits in one byte.
KEY_NAME: Final = 0x0A
KEY_ROW_OFFSET: Final = 0x10
KEY_ROWS: Final = 0x18
KEY_CRC32C: Final = 0x25
KEY_LAST: Final = 0x28
KEY_15_BYTES: Final = 0x7A
"""GenerateRequest.tensor and TensorChunk.data: both have field number 15."""
KEY_TENSORS: Final = 0x72
"""GenerateRequest.tensors."""
KEY_CHUNKS: Final = 0x0A
"""TensorChunks.chunks."""


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
    if not data or data[0] not in (KEY_15_BYTES, KEY_TENSORS):
        return None
    try:
        length, position = _read_varint(data, 1)
        if position + length != len(data):
            return None
        return _scan_chunk(data, position, len(data)) if data[0] == KEY_15_BYTES else _scan_chunks(data, position)
    except (IndexError, ValueError):  # UnicodeDecodeError is a ValueError
        return None  # leave it to the protobuf parser


def _scan_chunks(data: bytes, position: int) -> tuple[TensorChunkView, ...] | None:
    chunks = []
    while position < len(data):
        if data[position] != KEY_CHUNKS:
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
        if key == KEY_15_BYTES:
            length, position = _read_varint(data, position)
            if position + length != size:
                return None
            return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(data)[position:size])
        if key == KEY_NAME:
            length, position = _read_varint(data, position)
            if position + length > size:
                return None
            name = data[position : position + length].decode("utf-8")
            position += length
        elif key == KEY_ROW_OFFSET:
            row_offset, position = _read_varint(data, position)
        elif key == KEY_ROWS:
            rows, position = _read_varint(data, position)
            if rows >= 2**32:
                return None
        elif key == KEY_CRC32C:
            if position + 4 > size:
                return None
            checksum = int.from_bytes(data[position : position + 4], "little")
            position += 4
        elif key == KEY_LAST:
            number, position = _read_varint(data, position)
            last = number != 0
        else:
            return None
    # A truncated varint would have been read past the end of the chunk.
    return TensorChunkView(name, row_offset, rows, checksum, last, memoryview(b"")) if position == size else None
