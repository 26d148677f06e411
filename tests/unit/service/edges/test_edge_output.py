"""What an edge sends: the rows of its steps in one message, or many rows in several messages of limited size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from omni_proto.tensors import CHUNK_BYTES, TEXT_SCHEMA, UTF8, EdgeAssembler, TensorSchema, TensorSpec, tensor_prompt
from omni_stage.errors import ModelExecutionError
from omni_stage.service.edges.output import EdgeWriter
from omni_stage.service.request.reading import deserialize_request
from omni_stage.service.wire import OutgoingChunk, serialize_request

SCHEMA = TensorSchema("test/output", 1, (TensorSpec("x", "int16", (256,)), TensorSpec("ids", "int64")))


def step(rows: int, first: int = 0) -> dict[str, Any]:
    x = np.arange(rows * 256, dtype=np.int16).reshape(rows, 256) + first
    return {"x": x, "ids": np.arange(first, first + rows, dtype=np.int64)}


def receive(messages: list[OutgoingChunk]) -> dict[str, Any]:
    """Returns the tensors as the downstream stage reads them. Raises if one is incomplete."""
    prompt = tensor_prompt(SCHEMA, "thinker", [(name, 1 << 14) for name in SCHEMA.names])
    assembler = EdgeAssembler(SCHEMA, prompt.tensors)
    for message in messages:
        read = deserialize_request(serialize_request(message))
        for chunk in read if isinstance(read, tuple) else (read,):
            assembler.add(chunk)  # type: ignore[arg-type]
    return {name: tensor.to_numpy() for name, tensor in assembler.finish().items()}


@pytest.mark.parametrize("steps", [1, 4])
def test_the_rows_of_steps_are_one_message(steps: int) -> None:
    writer = EdgeWriter(SCHEMA)
    batch = [step(1, first) for first in range(steps)]
    messages = list(writer.encode(batch, last=False))
    assert [message.data_bytes for message in messages] == [steps * (512 + 8)]
    messages += writer.encode([], last=True)
    assert len(messages) == 2, "the ends of all tensors are also one message"
    received = receive(messages)
    for name in SCHEMA.names:
        assert np.array_equal(received[name], np.concatenate([one[name] for one in batch]))


def test_many_rows_are_cut() -> None:
    sent = step(5000)
    messages = list(EdgeWriter(SCHEMA).encode([sent], last=True))
    assert [message.data_bytes <= CHUNK_BYTES for message in messages] == [True] * 4
    received = receive(messages)
    assert all(np.array_equal(received[name], sent[name]) for name in SCHEMA.names)


def test_a_tensor_that_is_complete_ends_once() -> None:
    writer = EdgeWriter(SCHEMA)
    messages = [*writer.encode([step(1)], last=False, complete={"ids"}), *writer.encode([], last=True)]
    assert len(receive(messages)["ids"]) == 1


@pytest.mark.parametrize(
    "rows", [{"y": np.zeros(1)}, {"ids": np.zeros(1)}, {"x": np.zeros((1, 3), np.int16)}, {"ids": np.int64(1)}]
)
def test_what_the_schema_does_not_say_is_refused(rows: dict[str, Any]) -> None:
    """A tensor with another name, dtype or shape than in the schema is refused."""
    with pytest.raises(ModelExecutionError, match="schema"):
        EdgeWriter(SCHEMA).encode([rows], last=False)


@pytest.mark.parametrize("rows", [{"ids": np.zeros(1)}, {"x": np.zeros((1, 3), np.int16)}, {"ids": np.int64(1)}])
def test_each_step_is_checked(rows: dict[str, Any]) -> None:
    with pytest.raises(ModelExecutionError, match="schema"):
        EdgeWriter(SCHEMA).encode([step(1), rows], last=False)


@pytest.mark.parametrize("shift", range(4))
def test_every_message_of_text_holds_whole_characters(shift: int) -> None:
    text = "a" * shift + "\u4f60\N{WOMAN}\u00e9" * (CHUNK_BYTES // 4)
    rows = {UTF8: np.frombuffer(text.encode(), np.uint8)}
    assembler, read = EdgeAssembler(TEXT_SCHEMA, tensor_prompt(TEXT_SCHEMA, "llm", [(UTF8, 1 << 24)]).tensors), []
    for message in EdgeWriter(TEXT_SCHEMA).encode([rows], last=True):
        chunk = deserialize_request(serialize_request(message))
        assembler.add(chunk)  # type: ignore[arg-type]
        read.append(bytes(assembler.take()[UTF8].data).decode())
    assert len(read) == 3
    assert "".join(read) == text


def test_bytes_that_are_no_text_are_cut_anywhere() -> None:
    """They reach the reader, which refuses them."""
    rows = {UTF8: np.full(CHUNK_BYTES + 9, 0x80, np.uint8)}
    assert [it.data_bytes for it in EdgeWriter(TEXT_SCHEMA).encode([rows], last=True)] == [CHUNK_BYTES, 9]
