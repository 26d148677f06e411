"""Tensor chunk messages, built with protobuf's own classes and from raw bytes."""

from __future__ import annotations

from omni_proto.stage.v1.tensors_pb2 import TensorChunk
from omni_proto.tensors import TensorChunkView


def fields(name: str, offset: int, rows: int, crc: int, last: bool, data: bytes) -> TensorChunk:
    return TensorChunk(name=name, row_offset=offset, rows=rows, crc32c=crc, last=last, data=data)


def as_view(chunk: TensorChunk) -> TensorChunkView:
    return TensorChunkView(chunk.name, chunk.row_offset, chunk.rows, chunk.crc32c, chunk.last, memoryview(chunk.data))


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes((value,))


def wrap(inner: bytes) -> bytes:
    return b"\x7a" + varint(len(inner)) + inner


PIECES = {
    "name": b"\x0a\x01x",
    "row_offset": b"\x10\x05",
    "rows": b"\x18\x02",
    "crc32c": b"\x25\xef\xbe\xad\xde",
    "last": b"\x28\x01",
    "data": b"\x7a\x04abcd",
}
UNKNOWN = {
    "varint": b"\x30\x07",
    "fixed64": b"\x31" + bytes(8),
    "bytes": b"\x32\x02zz",
    "group": b"\x33\x08\x01\x34",
    "fixed32": b"\x35" + bytes(4),
    "above data": b"\x82\x01\x02zz",
    "far": b"\xf8\xff\x0f\x01",
}
