"""The codec decodes random, odd and mutated bytes exactly as protobuf does."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings, strategies as st

from omni_proto.errors import WireError
from omni_proto.stage.v1.stage_service_pb2 import GenerateRequest
from omni_proto.tensors import TensorChunkView, decode_generate_request, encode_tensor_chunk
from support.stages.chunk_messages import PIECES, UNKNOWN, as_view, fields, varint, wrap

FUZZ = settings(max_examples=300)


def check_like_protobuf(message: bytes) -> None:
    """Checks that the codec decodes a message as protobuf does, or raises WireError where protobuf raises too."""
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
