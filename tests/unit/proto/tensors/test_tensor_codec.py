"""The codec: its bytes are protobuf's own; it reads what any library may write; hostile bytes are errors."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omni_proto.errors import EncodeError, WireError
from omni_proto.stage.v1.stage_service_pb2 import End, GenerateRequest, GenerateResponse, Start
from omni_proto.stage.v1.tensors_pb2 import TensorChunk, TensorChunks
from omni_proto.tensors import (
    DTYPES,
    MAX_MESSAGE_BYTES,
    TensorChunkView,
    TensorSpec,
    crc32c,
    decode_generate_request,
    deserialize_generate_response,
    encode_rows,
    encode_tensor_chunk,
    encode_tensor_chunks,
    serialize_generate_request,
    serialize_generate_response,
)

FUZZ = settings(max_examples=300, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


PIECES = {
    "name": b"\x0a\x01x",
    "row_offset": b"\x10\x05",
    "rows": b"\x18\x02",
    "crc32c": b"\x25\xef\xbe\xad\xde",
    "last": b"\x28\x01",
    "data": b"\x7a\x04abcd",
}
EXPECTED = as_view(fields("x", 5, 2, 0xDEADBEEF, True, b"abcd"))
UNKNOWN = {
    "varint": b"\x30\x07",
    "fixed64": b"\x31" + bytes(8),
    "bytes": b"\x32\x02zz",
    "group": b"\x33\x08\x01\x34",
    "fixed32": b"\x35" + bytes(4),
    "above data": b"\x82\x01\x02zz",
    "far": b"\xf8\xff\x0f\x01",
}


def test_every_field_order_reads_the_same() -> None:
    for order in itertools.permutations(PIECES.values()):
        assert decode_generate_request(wrap(b"".join(order))) == EXPECTED


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN.keys())
@pytest.mark.parametrize("place", range(7))
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


def test_responses_round_trip() -> None:
    response = GenerateResponse(stage="token2wav")
    response.audio.data = b"\0\1"
    assert deserialize_generate_response(serialize_generate_response(response)) == response
    with pytest.raises(WireError):
        deserialize_generate_response(b"\x0a\x05ab")


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


def check_like_protobuf(message: bytes) -> None:
    """Decoding either gives what protobuf gives, or a WireError where protobuf refuses; never anything else."""
    try:
        decoded = decode_generate_request(message)
    except WireError:
        with pytest.raises(DecodeError):
            GenerateRequest.FromString(message)
        return
    reference = GenerateRequest.FromString(message)
    if isinstance(decoded, tuple):
        assert reference.WhichOneof("message") == "tensors"
        assert decoded == tuple(map(as_view, reference.tensors.chunks))
    elif isinstance(decoded, TensorChunkView):
        assert reference.WhichOneof("message") == "tensor"
        assert decoded == as_view(reference.tensor)
    else:
        assert decoded.SerializeToString(deterministic=True) == reference.SerializeToString(deterministic=True)


@FUZZ
@given(st.binary(max_size=200))
def test_random_bytes_decode_as_in_protobuf(message: bytes) -> None:
    check_like_protobuf(message)


@FUZZ
@given(st.binary(max_size=100))
def test_random_chunks_decode_as_in_protobuf(inner: bytes) -> None:
    check_like_protobuf(wrap(inner))


def wrap_chunks(inner: list[bytes]) -> bytes:
    body = b"".join(b"\x0a" + varint(len(one)) + one for one in inner)
    return b"\x72" + varint(len(body)) + body


ODD_CHUNKS = {
    "none": wrap_chunks([]),
    "empty ones": wrap_chunks([b"", b""]),
    "an unknown field among them": b"\x72\x07\x0a\x03\x0a\x01x\x10\x01",
    "a number that goes on in the next chunk": b"\x72\x08\x0a\x02\x10\x85\x0a\x02\x18\x01",
    "data behind the chunk's end": b"\x72\x09\x0a\x02\x7a\x03\x0a\x03abc",
    "twice": wrap_chunks([b"\x0a\x01x"]) + wrap_chunks([b"\x0a\x01y"]),
    "and then one alone": wrap_chunks([b"\x0a\x01x"]) + wrap(b"\x0a\x01y"),
}


@pytest.mark.parametrize("message", ODD_CHUNKS.values(), ids=ODD_CHUNKS.keys())
def test_odd_chunks_decode_as_in_protobuf(message: bytes) -> None:
    check_like_protobuf(message)


@FUZZ
@given(st.lists(st.lists(st.sampled_from([*PIECES.values(), *UNKNOWN.values()]), max_size=6), max_size=4), st.data())
def test_mutated_chunks_together_decode_as_in_protobuf(chunks: list[list[bytes]], data: st.DataObject) -> None:
    message = bytearray(wrap_chunks([b"".join(pieces) for pieces in chunks]))
    for place in data.draw(st.lists(st.integers(0, len(message) - 1), max_size=3)):
        message[place] = data.draw(st.integers(0, 255))
    check_like_protobuf(bytes(message))


@FUZZ
@given(
    st.lists(st.sampled_from([*PIECES.values(), *UNKNOWN.values()]), max_size=8),
    st.integers(0, 2**32),
    st.integers(0, 8),
)
def test_mutated_chunks_decode_as_in_protobuf(pieces: list[bytes], seed: int, flips: int) -> None:
    message = bytearray(wrap(b"".join(pieces)))
    rng = random.Random(seed)
    for _ in range(flips):
        message[rng.randrange(len(message))] = rng.randrange(256)
    check_like_protobuf(bytes(message))
    check_like_protobuf(bytes(message[: rng.randrange(len(message) + 1)]))


@FUZZ
@given(
    st.text(max_size=80),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.binary(max_size=300),
)
def test_any_chunk_round_trips(name: str, offset: int, rows: int, crc: int, last: bool, data: bytes) -> None:
    message = encode_tensor_chunk(name, offset, rows, crc, last, data)
    assert message == GenerateRequest(tensor=fields(name, offset, rows, crc, last, data)).SerializeToString(
        deterministic=True
    )
    assert decode_generate_request(message) == as_view(fields(name, offset, rows, crc, last, data))


@pytest.mark.parametrize(
    ("offset", "rows", "crc", "size"),
    [(-1, 0, 0, 0), (2**64, 0, 0, 0), (0, 2**32, 0, 0), (0, -1, 0, 0), (0, 0, 2**32, 0), (0, 1, 0, MAX_MESSAGE_BYTES)],
)
def test_what_does_not_fit_is_not_sent(offset: int, rows: int, crc: int, size: int) -> None:
    with pytest.raises(EncodeError):
        encode_tensor_chunk("x", offset, rows, crc, False, bytes(size))


def test_rows_are_split_whole_and_numbered() -> None:
    spec = TensorSpec("x", "int16", (3,))
    data = np.arange(30, dtype=np.int16).reshape(10, 3)
    chunks = [decode_generate_request(m) for m in encode_rows(spec, data, first_row=100, chunk_bytes=20)]
    assert all(isinstance(chunk, TensorChunkView) for chunk in chunks)
    views = [chunk for chunk in chunks if isinstance(chunk, TensorChunkView)]
    assert [(v.row_offset, v.rows, v.last) for v in views] == [
        (100, 3, False),
        (103, 3, False),
        (106, 3, False),
        (109, 1, True),
    ]
    assert b"".join(v.data for v in views) == data.tobytes()
    assert all(v.crc32c == crc32c(bytes(v.data)) for v in views)


def test_a_row_above_the_chunk_size_goes_alone() -> None:
    spec = TensorSpec("x", "uint8", (100,))
    chunks = list(encode_rows(spec, bytes(300), chunk_bytes=10))
    assert len(chunks) == 3


def test_no_rows_end_a_tensor_or_say_nothing() -> None:
    spec = TensorSpec("x", "int16", (3,))
    assert decode_generate_request(next(encode_rows(spec, b"", first_row=4))) == as_view(
        fields("x", 4, 0, 0, True, b"")
    )
    assert list(encode_rows(spec, np.zeros((0, 3), np.int16), last=False)) == []


def test_only_contiguous_whole_rows_are_taken() -> None:
    spec = TensorSpec("x", "int16", (2,))
    with pytest.raises(EncodeError, match="whole rows"):
        next(encode_rows(spec, bytes(7)))
    with pytest.raises(EncodeError, match="contiguous"):
        next(encode_rows(spec, np.zeros((4, 4), np.int16)[:, :2]))


def test_crc_is_castagnoli_whatever_the_buffer() -> None:
    known = b"123456789"
    for data in (known, memoryview(known), memoryview(b"x" + known)[1:], memoryview(bytearray(known))):
        assert crc32c(data) == 0xE3069283
    assert crc32c(b"") == crc32c(memoryview(b"")) == 0


@pytest.mark.parametrize("name", DTYPES)
def test_sizes_are_those_of_numpy(name: str) -> None:
    assert np.dtype(DTYPES[name].numpy_name).itemsize == DTYPES[name].size
