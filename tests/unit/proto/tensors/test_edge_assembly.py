"""Reassembly of an edge: headers must match the schema, tensors may interleave, and no damage is accepted."""

from __future__ import annotations

import random

import pytest

from omni_proto.errors import InvalidTensorError, OversizedTensorError, TensorError, WireError
from omni_proto.stage.v1.tensors_pb2 import DTYPE_FLOAT32, DTYPE_UNSPECIFIED, TensorHeader
from omni_proto.tensors import (
    EdgeAssembler,
    TensorChunkView,
    TensorSchema,
    TensorSpec,
    decode_generate_request,
    encode_rows,
    tensor_prompt,
)
from support.stages.tensor_chunks import receive, tensor_of

SCHEMA = TensorSchema(
    "qwen2_5_omni/thinker2talker",
    1,
    (TensorSpec("x", "float32", (4,)), TensorSpec("token_ids", "int64"), TensorSpec("positions", "int64", (3,))),
)


def headers(**max_rows: int) -> list[TensorHeader]:
    return list(
        tensor_prompt(SCHEMA, "thinker", {name: max_rows.get(name, 10) for name in SCHEMA.names}.items()).tensors
    )


def changed(index: int, **values: object) -> list[TensorHeader]:
    result = headers()
    copy = TensorHeader()
    copy.CopyFrom(result[index])
    for name, value in values.items():
        if name == "row_shape":
            del copy.row_shape[:]
            copy.row_shape.extend(value)  # type: ignore[arg-type]
        else:
            setattr(copy, name, value)
    result[index] = copy
    return result


WRONG_HEADERS = {
    "missing": (headers()[1:], InvalidTensorError, "has it, but no header came"),
    "none": ([], InvalidTensorError, "has it, but no header came"),
    "twice": ([*headers(), headers()[0]], InvalidTensorError, "its header came twice"),
    "unknown": (changed(0, name="later"), InvalidTensorError, "has no such tensor"),
    "dtype": (changed(0, dtype=DTYPE_FLOAT32), InvalidTensorError, "header says float32"),
    "dtype unset": (changed(0, dtype=DTYPE_UNSPECIFIED), InvalidTensorError, "dtype number 0 is not known"),
    "dtype of a newer protocol": (changed(0, dtype=77), InvalidTensorError, "dtype number 77 is not known"),
    "row shape": (changed(0, row_shape=[4]), InvalidTensorError, "header says"),
    "dimensions": (changed(0, row_shape=[3, 1]), InvalidTensorError, "header says"),
    "too many rows": (headers(x=101), OversizedTensorError, "max_rows 101 is over 100"),
    "rows of 64 bits": (headers(x=2**64 - 1), OversizedTensorError, "is over 100"),
    "too many bytes": (
        headers(x=100, token_ids=100, positions=100),
        OversizedTensorError,
        "the tensors announce over 2000 bytes",
    ),
}


@pytest.mark.parametrize(("given", "error", "message"), WRONG_HEADERS.values(), ids=WRONG_HEADERS.keys())
def test_headers_must_be_those_of_the_schema(given: list[TensorHeader], error: type[TensorError], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        EdgeAssembler(SCHEMA, given, max_rows=100, max_bytes=2000)
    assert (type(caught.value), caught.value.reason) == (error, "INVALID_TENSOR")


def test_huge_announcements_reserve_nothing_yet() -> None:
    edge = EdgeAssembler(SCHEMA, headers(x=2**62))
    assert edge.max_bytes > 2**60
    assert edge.received_bytes == 0


def test_an_edge_takes_interleaved_tensors_in_any_order() -> None:
    data = {spec.name: tensor_of(spec, 10, seed=3) for spec in SCHEMA.tensors}
    streams = [list(encode_rows(SCHEMA.spec(name), data[name], chunk_bytes=40)) for name in SCHEMA.names]
    rng = random.Random(1)
    edge = EdgeAssembler(SCHEMA, headers(), max_rows=10, max_bytes=10_000)
    while any(streams):
        stream = rng.choice([s for s in streams if s])
        assert not edge.complete
        view = decode_generate_request(stream.pop(0))
        assert isinstance(view, TensorChunkView)
        edge.add(view)
    assert edge.complete
    assert edge.received_bytes == sum(map(len, data.values()))
    assert edge.rows == dict.fromkeys(SCHEMA.names, 10)
    assert {name: bytes(tensor.data) for name, tensor in edge.finish().items()} == data


def damage(messages: list[bytes], rng: random.Random) -> list[bytes]:
    """Returns the messages with one to three random faults, such as a transport or a faulty peer may cause."""
    result = list(messages)
    for _ in range(rng.randint(1, 3)):
        if not result:
            break
        at = rng.randrange(len(result))
        match rng.choice(["drop", "duplicate", "swap", "flip", "cut", "zero", "grow"]):
            case "drop":
                del result[at]
            case "duplicate":
                result.insert(rng.randrange(len(result) + 1), result[at])
            case "swap":
                other = rng.randrange(len(result))
                result[at], result[other] = result[other], result[at]
            case "flip":
                result[at] = flip(result[at], 1 << rng.randrange(8), rng)
            case "zero":
                result[at] = flip(result[at], 0xFF, rng)
            case "cut":
                result[at] = result[at][: rng.randrange(len(result[at]))]
            case "grow":
                result[at] += rng.randbytes(rng.randint(1, 4))
    return result


def flip(message: bytes, bits: int, rng: random.Random) -> bytes:
    if not message:
        return message
    place = rng.randrange(len(message))
    return message[:place] + bytes((message[place] ^ bits,)) + message[place + 1 :]


def test_no_damage_is_ever_accepted() -> None:
    """Each of 3000 damaged transfers raises a named error, or delivers exactly what was sent."""
    data = {spec.name: tensor_of(spec, 10, seed=5) for spec in SCHEMA.tensors}
    clean = [bytes(m) for spec in SCHEMA.tensors for m in encode_rows(spec, data[spec.name], chunk_bytes=48)]
    rng = random.Random(20)
    messages: list[str] = []
    harmless = 0
    for _ in range(3000):
        edge = EdgeAssembler(SCHEMA, headers(), max_rows=10)
        try:
            views = [decode_generate_request(message) for message in damage(clean, rng)]
            received = receive(edge, [view for view in views if isinstance(view, TensorChunkView)])
        except (TensorError, WireError) as error:
            messages.append(str(error))
        else:
            # A harmless fault: it swapped chunks of two tensors, undid another fault, or hit what protobuf ignores.
            assert received == data
            harmless += 1
    assert harmless < 600
    assert len(messages) > 2000
    for fault in ("CRC-32C", "was due", "came again", "without a last chunk", "is not a GenerateRequest"):
        assert any(fault in message for message in messages), fault
