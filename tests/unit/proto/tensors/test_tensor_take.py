"""EdgeAssembler.take() returns rows before an edge has ended: each row once, in order, and as it was sent."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from omni_proto.tensors import EdgeAssembler, TensorChunkView, TensorSchema, TensorSpec, assembly, crc32c, tensor_prompt

SCHEMA = TensorSchema("test/edge", 1, (TensorSpec("a", "int16", (2,)), TensorSpec("b", "int64")))


def chunk(name: str, offset: int, rows: int, *, last: bool = False) -> TensorChunkView:
    values = np.arange(offset, offset + rows)
    data = (np.repeat(values, 2).astype("<i2") if name == "a" else values.astype("<i8")).tobytes()
    return TensorChunkView(name, offset, rows, crc32c(data), last, memoryview(data))


def edge(rows: int) -> EdgeAssembler:
    return EdgeAssembler(SCHEMA, tensor_prompt(SCHEMA, "up", [("a", rows), ("b", rows)]).tensors)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 40), st.booleans()), max_size=30))
def test_rows_are_taken_once_and_stay_as_they_were(steps: list[tuple[str, int, bool]]) -> None:
    """Rows that were taken stay unchanged when a buffer grows. Buffers start small here, so they grow between takes."""
    before, assembly.FIRST_CAPACITY_BYTES = assembly.FIRST_CAPACITY_BYTES, 64  # type: ignore[misc]
    try:
        assembler, sent = edge(2000), {"a": 0, "b": 0}
        taken: dict[str, list[np.ndarray]] = {"a": [], "b": []}
        for name, rows, take in steps:
            assembler.add(chunk(name, sent[name], rows))
            sent[name] += rows
            if take:
                for key, tensor in assembler.take().items():
                    taken[key].append(tensor.to_numpy())
        for key, tensor in assembler.take().items():
            taken[key].append(tensor.to_numpy())
        assert assembler.take() == {}
    finally:
        assembly.FIRST_CAPACITY_BYTES = before  # type: ignore[misc]
    for name, parts in taken.items():
        rows = [int(value) for part in parts for value in part.reshape(len(part), -1)[:, 0]]
        assert rows == list(range(sent[name]))


def test_which_tensors_are_complete() -> None:
    assembler = edge(10)
    assembler.add(chunk("a", 0, 3))
    assert assembler.complete_tensors == frozenset()
    assembler.add(chunk("a", 3, 1, last=True))
    assert assembler.complete_tensors == frozenset({"a"})
    assert {name: tensor.rows for name, tensor in assembler.take().items()} == {"a": 4}
    assembler.add(chunk("b", 0, 0, last=True))
    assert assembler.complete_tensors == frozenset({"a", "b"})
    assert assembler.take() == {}, "the end of a tensor without further rows gives no rows"
    assert {name: tensor.rows for name, tensor in assembler.finish().items()} == {"a": 4, "b": 0}
