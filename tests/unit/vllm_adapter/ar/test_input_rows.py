"""Input rows: chunks stay in order, the last row is repeated, and requests without rows get zeros.

A step removes all rows of earlier steps from the buffer, and the store keeps no rows of a request that has ended.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_stage.errors import InvalidTensorError
from omni_stage.payloads import AdditionalInformationPayload
from omni_stage.vllm_adapter.ar.input_rows import InputRows, InputRowStore, MropePositions
from omni_stage.vllm_adapter.hooks import ScheduledSpan


def rows(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None].repeat(1, 2)


def payload(**values: Any) -> AdditionalInformationPayload:
    return AdditionalInformationPayload.from_mapping(values)


def read(source: InputRows, start: int, count: int) -> list[float]:
    target = torch.full((count, 2), -1.0)
    source.copy_to(target, start)
    return target[:, 0].tolist()


def make_store() -> InputRowStore:
    return InputRowStore(8, 2, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        pytest.param([(0, (1, 2, 3))], [1, 2, 3, 3, 3], id="all at once, the last held"),
        pytest.param([(0, (1,)), (1, (2,)), (2, (3, 4))], [1, 2, 3, 4, 4], id="chunks in order"),
        pytest.param([(0, (1, 2, 3)), (1, (7,))], [1, 7, 7, 7, 7], id="a chunk replaces what is behind its offset"),
        pytest.param([(0, (1, 2)), (0, (5,))], [5, 5, 5, 5, 5], id="offset 0 starts anew"),
        pytest.param([(index, (index,)) for index in range(40)], [0, 1, 2, 3, 4], id="many chunks"),
    ],
)
def test_chunks_become_rows_of_positions(chunks: list[tuple[int, tuple[float, ...]]], expected: list[float]) -> None:
    source = InputRows(2, torch.float32)
    for offset, values in chunks:
        source.write(offset, rows(*values))
    assert read(source, 0, 5) == expected
    assert read(source, 2, 2) == expected[2:4]
    assert len(source) == chunks[-1][0] + len(chunks[-1][1])


def test_a_step_is_filled_by_offset_and_padded_with_zeros() -> None:
    store = make_store()
    store.add("a", payload(input_rows=rows(1, 2)))
    store.add("b", payload(input_rows=rows(5)))
    spans = [ScheduledSpan("a", 1, 2, 0), ScheduledSpan("none", 0, 1, 2), ScheduledSpan("b", 9, 1, 3)]
    store.fill(spans, 6)
    assert store.buffer[:, 0].tolist() == [2, 2, 0, 5, 0, 0, 0, 0]
    # The request without rows now has the positions where another request's rows were, and still gets zeros.
    store.fill([ScheduledSpan("none", 0, 2, 0), ScheduledSpan("b", 9, 1, 2)], 4)
    assert store.buffer[:, 0].tolist() == [0, 0, 5, 0, 0, 0, 0, 0]
    # A smaller step, then one without rows: no rows of the larger step remain.
    store.fill([ScheduledSpan("b", 0, 1, 0)], 1)
    assert store.buffer[:, 0].tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    store.fill([ScheduledSpan("none", 0, 3, 0)], 3)
    assert not store.buffer.any()


def test_dummy_runs_see_zeros_and_ended_requests_leave_nothing() -> None:
    store = make_store()
    store.add("a", payload(input_rows=rows(1, 2)))
    store.fill([ScheduledSpan("a", 0, 2, 0)], 4)
    store.clear()
    assert not store.buffer.any()
    store.drop("a")
    store.drop("a")
    assert "a" not in store
    store.fill([ScheduledSpan("a", 0, 2, 0)], 2)
    assert not store.buffer.any()


def test_rows_take_the_engines_dtype_and_a_chunk_continues() -> None:
    store = InputRowStore(8, 2, torch.bfloat16, torch.device("cpu"))
    store.add("a", payload(input_rows=rows(1, 2)))
    store.add("a", payload(other=[1]))
    store.add("a", payload(input_rows=rows(3), input_rows_offset=[2]))
    store.fill([ScheduledSpan("a", 0, 4, 0)], 4)
    assert store.buffer.dtype == torch.bfloat16
    assert store.buffer[:4, 0].tolist() == [1, 2, 3, 3]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({"input_rows": torch.ones(2, 3)}, "input_rows", id="row size"),
        pytest.param({"input_rows": torch.ones(2)}, "input_rows", id="rank"),
        pytest.param({"input_rows": torch.ones(1, 2, dtype=torch.int64)}, "input_rows", id="integers"),
        pytest.param({"input_rows": torch.ones(1, 2), "input_rows_offset": [4]}, "input_rows_offset", id="gap"),
        pytest.param({"input_rows": torch.ones(1, 2), "input_rows_offset": [-1]}, "input_rows_offset", id="negative"),
        pytest.param({"input_rows": torch.ones(1, 2), "input_rows_offset": [0.0]}, "input_rows_offset", id="float"),
        pytest.param({"input_rows": torch.ones(1, 2), "input_rows_offset": [True]}, "input_rows_offset", id="bool"),
        pytest.param({"input_rows": torch.ones(1, 2), "input_rows_offset": [0, 0]}, "input_rows_offset", id="two"),
    ],
)
def test_rows_that_do_not_fit_are_named_and_change_nothing(values: dict[str, Any], field: str) -> None:
    store = make_store()
    store.add("a", payload(input_rows=rows(1, 2)))
    with pytest.raises(InvalidTensorError) as caught:
        store.add("a", payload(**values))
    assert caught.value.details.field == field
    store.fill([ScheduledSpan("a", 0, 2, 0)], 2)
    assert store.buffer[:2, 0].tolist() == [1, 2]


def test_no_rows_are_no_rows() -> None:
    with pytest.raises(InvalidTensorError):
        InputRows(2, torch.float32).write(0, torch.ones(0, 2))


def test_mrope_positions_are_those_of_the_payload_then_index_plus_delta() -> None:
    positions = torch.tensor([[0, 0, 0], [1, 1, 2], [1, 2, 1]])
    mrope = MropePositions.from_payload(payload(mrope_positions=positions, mrope_delta=[-1]))
    assert mrope is not None
    assert mrope.of_prompt(2).tolist() == [[0, 1], [0, 1], [0, 2]]
    assert mrope.of_prompt(5).tolist() == [[0, 1, 1, 2, 3], [0, 1, 2, 2, 3], [0, 2, 1, 2, 3]]
    assert MropePositions.from_payload(payload(other=[1])) is None


@pytest.mark.parametrize(
    ("values", "field"),
    [
        pytest.param({"mrope_positions": torch.ones(3, 4, dtype=torch.int64), "mrope_delta": [0]}, "mrope_positions"),
        pytest.param({"mrope_positions": torch.ones(3, dtype=torch.int64), "mrope_delta": [0]}, "mrope_positions"),
        pytest.param({"mrope_positions": torch.ones(4, 3), "mrope_delta": [0]}, "mrope_positions"),
        pytest.param({"mrope_positions": torch.ones(4, 3, dtype=torch.int64), "mrope_delta": []}, "mrope_delta"),
        pytest.param({"mrope_positions": torch.ones(4, 3, dtype=torch.int64)}, "additional_information.mrope_delta"),
    ],
)
def test_wrong_mrope_positions_are_named(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTensorError) as caught:
        MropePositions.from_payload(payload(**values))
    assert caught.value.details.field == field
