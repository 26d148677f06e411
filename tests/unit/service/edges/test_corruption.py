"""A stage refuses 10,000 damaged transfers, each with DATA_LOSS or INVALID_ARGUMENT and a documented reason.

The bytes on the wire are damaged. They pass through the same parts as in every call: deserializer, reader, assembler
and the mapping of errors to statuses. A damaged transfer may be accepted only if exactly what was sent is received.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

import numpy as np
import pytest

from omni_proto.rpc.status import read_status
from omni_proto.stage.v1 import stage_service_pb2 as pb
from omni_proto.tensors import TensorSchema, TensorSpec, encode_rows, schema_hash, tensor_prompt
from omni_stage.service.errors import to_status
from omni_stage.service.request.planning.announced import check_edge
from omni_stage.service.request.reading import RequestReader, deserialize_request
from support.stages.tensor_chunks import bfloat16_bits

CASES, SEED = 10_000, 20_261_121
SCHEMA = TensorSchema(
    "test/damage",
    1,
    (
        # x and y differ in one bit of their names and have equal rows: the worst case for a flipped bit.
        TensorSpec("x", "bfloat16", (4,)),
        TensorSpec("y", "bfloat16", (4,)),
        TensorSpec("ids", "int64"),
        TensorSpec("mask", "bool", (3,)),
    ),
)
Wire = list[bytes]
END = pb.GenerateRequest(end=pb.End()).SerializeToString()


def make_transfer(rng: random.Random) -> Wire:
    """Returns the chunks of all tensors and then End. The tensors are interleaved; each one's chunks are in order."""
    queues = []
    for spec in SCHEMA.tensors:
        rows = rng.randrange(1, 9)
        values = np.random.default_rng(rng.randrange(1 << 30))
        if spec.dtype == "bfloat16":
            data = bfloat16_bits(values.standard_normal(rows * 4, dtype=np.float32)).tobytes()
        elif spec.dtype == "bool":
            data = values.integers(0, 2, rows * 3, dtype=np.uint8).tobytes()
        else:
            data = values.integers(-9, 9, rows).astype("<i8").tobytes()
        size = spec.row_bytes * rng.randrange(1, 5)
        queues.append([bytes(chunk) for chunk in encode_rows(spec, data, chunk_bytes=size)])
    mixed: Wire = []
    while queues:
        queue = rng.choice(queues)
        mixed.append(queue.pop(0))
        if not queue:
            queues.remove(queue)
    return [*mixed, END]


def receive(wire: Sequence[bytes]) -> dict[str, bytes]:
    """Returns the tensors that a stage reads from the messages after Start. Raises the error that ends the call."""
    prompt = tensor_prompt(SCHEMA, "thinker", [(name, 16) for name in SCHEMA.names])
    start = pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(SCHEMA)))
    reader = RequestReader()
    begun = reader.start(deserialize_request(start.SerializeToString()))
    reader.expect({}, check_edge(begun, "thinker", SCHEMA))
    for message in wire:
        reader.feed(deserialize_request(message))
    reader.end_of_stream()
    return {name: bytes(tensor.data) for name, tensor in reader.tensors.items()}


def flip_bits(wire: Wire, rng: random.Random) -> None:
    index = rng.randrange(len(wire))
    damaged = bytearray(wire[index])
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    wire[index] = bytes(damaged)


def truncate(wire: Wire, rng: random.Random) -> None:
    index = rng.randrange(len(wire))
    wire[index] = wire[index][: rng.randrange(len(wire[index]))]


def append(wire: Wire, rng: random.Random) -> None:
    index = rng.randrange(len(wire))
    wire[index] += rng.randbytes(rng.randrange(1, 9))


def overwrite(wire: Wire, rng: random.Random) -> None:
    index = rng.randrange(len(wire))
    at = rng.randrange(len(wire[index]))
    piece = rng.choice((rng.randbytes(4), bytes(8), b"\xff" * 8))
    wire[index] = wire[index][:at] + piece + wire[index][at + len(piece) :]


def drop(wire: Wire, rng: random.Random) -> None:
    del wire[rng.randrange(len(wire))]


def duplicate(wire: Wire, rng: random.Random) -> None:
    index = rng.randrange(len(wire))
    wire.insert(rng.randrange(index, len(wire)) + 1, wire[index])


def swap(wire: Wire, rng: random.Random) -> None:
    one, two = rng.randrange(len(wire)), rng.randrange(len(wire))
    wire[one], wire[two] = wire[two], wire[one]


def stop_early(wire: Wire, rng: random.Random) -> None:
    del wire[rng.randrange(len(wire)) :]


DAMAGES: tuple[Callable[[Wire, random.Random], None], ...] = (
    flip_bits, flip_bits, truncate, append, overwrite, drop, duplicate, swap, stop_early
)  # fmt: skip


def test_every_damage_is_a_named_error() -> None:
    rng = random.Random(SEED)
    refused: Counter[tuple[str, str, str]] = Counter()
    harmless = 0
    for number in count():
        if sum(refused.values()) >= CASES:
            break
        if number % 20 == 0:
            whole = make_transfer(rng)
            sent = receive(whole)
        wire = list(whole)
        damage = rng.choice(DAMAGES)
        damage(wire, rng)
        try:
            received = receive(wire)
        except Exception as error:  # noqa: BLE001 - the test covers how any error is mapped
            status = to_status(error, stage="talker", request_id="r")
            told = read_status(status)
            refused[damage.__name__, told.code.name, told.reason] += 1
        else:
            # Harmless: chunks of two tensors changed their order, a field is unknown, or a bool is 3 instead of 1.
            assert received == sent, f"{damage.__name__} was accepted and changed what was received"
            harmless += 1
    assert {code for _, code, _ in refused} == {"DATA_LOSS", "INVALID_ARGUMENT"}
    assert {reason for _, _, reason in refused} <= {
        "CORRUPT_TENSOR", "INVALID_TENSOR", "NON_FINITE_TENSOR", "PROTOCOL_VIOLATION"
    }  # fmt: skip
    assert {name for name, _, _ in refused} == {damage.__name__ for damage in DAMAGES}
    assert harmless < CASES / 10


@pytest.mark.parametrize("damage", [drop, duplicate, stop_early], ids=lambda damage: damage.__name__)
def test_lost_and_repeated_chunks_are_never_harmless(damage: Callable[[Wire, random.Random], None]) -> None:
    rng = random.Random(SEED)
    for _ in range(300):
        wire = make_transfer(rng)
        damage(wire, rng)
        with pytest.raises(Exception):  # noqa: B017, PT011 - the test above checks which one
            receive(wire)
