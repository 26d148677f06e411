"""The codec writes the same bytes as protobuf, reads every legal encoding, and raises WireError for hostile bytes."""

from __future__ import annotations

import itertools

import pytest

from omni_proto.errors import WireError
from omni_proto.stage.v1.stage_service_pb2 import End, GenerateRequest, Start
from omni_proto.stage.v1.tensors_pb2 import TensorChunk, TensorChunks
from omni_proto.tensors import (
    TensorChunkView,
    decode_generate_request,
    encode_tensor_chunk,
    encode_tensor_chunks,
    serialize_generate_request,
)
from support.stages.chunk_messages import PIECES, UNKNOWN, as_view, fields, varint, wrap
from support.tables import each_row

CHUNKS = {
    "plain": fields("x", 5, 3, 0xDEADBEEF, False, b"abcdef"),
    "first row and no crc": fields("x", 0, 1, 0, False, b"\0"),
    "last": fields("x", 5, 1, 1, True, b"q"),
    "ends without rows": fields("x", 12, 0, 0, True, b""),
    "no name": fields("", 0, 1, 7, False, b"q"),
    "all defaults": fields("", 0, 0, 0, False, b""),
    "long varints": fields("x" * 200, 2**64 - 1, 2**32 - 1, 2**32 - 1, True, b"d" * 300),
    "name of several bytes a letter": fields("größe", 1, 1, 1, False, b"q"),
    "data that looks like fields": fields("x", 1, 1, 1, False, b"\x7a\x7a\x0a\x01x"),
    "a megabyte": fields("x", 1, 1, 1, False, bytes(1 << 20)),
}


@pytest.mark.parametrize("chunk", CHUNKS.values(), ids=CHUNKS.keys())
def test_bytes_are_those_of_protobuf(chunk: TensorChunk) -> None:
    ours = encode_tensor_chunk(chunk.name, chunk.row_offset, chunk.rows, chunk.crc32c, chunk.last, chunk.data)
    theirs = GenerateRequest(tensor=chunk).SerializeToString(deterministic=True)
    assert ours == theirs
    assert decode_generate_request(theirs) == as_view(chunk)


@pytest.mark.parametrize("number", [2, len(CHUNKS)])
def test_chunks_together_are_those_of_protobuf(number: int) -> None:
    chunks = list(CHUNKS.values())[:number]
    ours = encode_tensor_chunks([as_view(chunk) for chunk in chunks])
    theirs = GenerateRequest(tensors=TensorChunks(chunks=chunks)).SerializeToString(deterministic=True)
    assert ours == theirs
    assert decode_generate_request(theirs) == tuple(map(as_view, chunks))


def test_data_is_a_slice_of_the_message() -> None:
    message = encode_tensor_chunk("x", 0, 1, 0, False, b"payload")
    view = decode_generate_request(message)
    assert isinstance(view, TensorChunkView)
    assert view.data.obj is message


EXPECTED = as_view(fields("x", 5, 2, 0xDEADBEEF, True, b"abcd"))


def test_every_field_order_reads_the_same() -> None:
    for order in itertools.permutations(PIECES.values()):
        assert decode_generate_request(wrap(b"".join(order))) == EXPECTED


@each_row("unknown", UNKNOWN.values(), ids=UNKNOWN.keys())
@each_row("place", range(7))
def test_unknown_fields_are_ignored(unknown: bytes, place: int) -> None:
    pieces = list(PIECES.values())
    pieces.insert(place, unknown)
    message = wrap(b"".join(pieces))
    assert decode_generate_request(message) == EXPECTED
    assert decode_generate_request(unknown + wrap(b"".join(PIECES.values())) + unknown) == EXPECTED


ODD = {
    "explicit defaults": (wrap(b"\x0a\x00\x10\x00\x18\x00\x25\0\0\0\0\x28\x00\x7a\x00"), CHUNKS["all defaults"]),
    "overlong varints": (
        b"\x7a\x94\x80\x00" + b"\x0a\x81\x00x\x10\x85\x80\x00\x18\x82\x00\x28\x81\x00\x7a\x83\x00abc",
        fields("x", 5, 2, 0, True, b"abc"),
    ),
    "overlong keys": (wrap(b"\x8a\x00\x01x\xfa\x00\x01q"), fields("x", 0, 0, 0, False, b"q")),
    "last value of a repeated scalar": (wrap(b"\x10\x05\x10\x06"), fields("", 6, 0, 0, False, b"")),
    "data twice": (wrap(b"\x7a\x01a\x7a\x01b"), fields("", 0, 0, 0, False, b"b")),
    "two messages merge": (wrap(b"\x0a\x01x") + wrap(b"\x10\x05"), fields("x", 5, 0, 0, False, b"")),
    "rows beyond 32 bits are cut": (wrap(b"\x18\x82\x80\x80\x80\x10"), fields("", 0, 2, 0, False, b"")),
    "bool of another number": (wrap(b"\x28\x07"), fields("", 0, 0, 0, True, b"")),
    "wrong wire type is unknown": (wrap(b"\x08\x01\x0a\x01x"), fields("x", 0, 0, 0, False, b"")),
}


@pytest.mark.parametrize(("message", "chunk"), ODD.values(), ids=ODD.keys())
def test_odd_but_legal_encodings(message: bytes, chunk: TensorChunk) -> None:
    assert as_view(GenerateRequest.FromString(message).tensor) == as_view(chunk)
    assert decode_generate_request(message) == as_view(chunk)


def test_a_later_message_of_the_oneof_wins() -> None:
    message = wrap(b"\x0a\x01x") + GenerateRequest(end=End()).SerializeToString()
    decoded = decode_generate_request(message)
    assert isinstance(decoded, GenerateRequest)
    assert decoded.WhichOneof("message") == "end"


@pytest.mark.parametrize(
    "message",
    [GenerateRequest(start=Start(text="hello")), GenerateRequest(end=End()), GenerateRequest()],
    ids=["start", "end", "none"],
)
def test_other_messages_pass_as_protobuf(message: GenerateRequest) -> None:
    assert decode_generate_request(serialize_generate_request(message)) == message


def test_encoded_chunks_pass_the_serializer_uncopied() -> None:
    chunk = encode_tensor_chunk("x", 0, 1, 0, False, b"q")
    assert serialize_generate_request(chunk) is chunk


HOSTILE = {
    "cut key": b"\x7a",
    "cut length": b"\x7a\xff",
    "length beyond the end": b"\x7a\x05ab",
    "length of 2^63": b"\x7a" + varint(2**63),
    "endless varint": b"\x7a" + b"\xff" * 20,
    "varint of 70 bits": wrap(b"\x10" + b"\xff" * 9 + b"\x7f\x01"),
    "cut crc": wrap(b"\x25\x01\x02"),
    "cut name": wrap(b"\x0a\x05ab"),
    "cut data": wrap(b"\x7a\x05ab"),
    "name is not UTF-8": wrap(b"\x0a\x02\xff\xfe\x7a\x01q"),
    "field number 0": b"\x00\x01",
    "unknown wire type": wrap(b"\x07"),
    "end of a group without start": wrap(b"\x34"),
    "text": b"GET / HTTP/1.1\r\n\r\n",
    "nesting": b"\x33" * 500,
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_bytes_are_wire_errors(message: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode_generate_request(message)
    assert str(len(message)) in str(caught.value)
