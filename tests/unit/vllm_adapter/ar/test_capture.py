"""The capture ledger sends every position once and in order, whatever vLLM schedules. Also tests async outputs."""

from __future__ import annotations

import random

import pytest
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from omni_stage.errors import ModelExecutionError
from omni_stage.vllm_adapter.ar.capture import CaptureLedger, Delivery, HostCopy, HostSlice, compute_spans, merge_ranges
from omni_stage.vllm_adapter.ar.publish import AsyncRowsOutput, StepOutput
from omni_stage.vllm_adapter.wiring.packing import unpack

# One step: request -> (first position, number of positions, whether it samples).
Step = dict[str, tuple[int, int, bool]]


def play(ledger: CaptureLedger, steps: list[Step]) -> dict[str, list[list[int]]]:
    """Returns what each request is sent, one list per delivery. The row of position p has the value p."""
    sent: dict[str, list[list[int]]] = {}
    for step in steps:
        batch = torch.cat([torch.arange(start, start + length) for start, length, _ in step.values()])
        spans = compute_spans(
            list(step),
            {name: length for name, (_, length, _) in step.items()},
            {name: start for name, (start, _, _) in step.items()},
        )
        fresh, gaps = ledger.plan(spans)
        assert not gaps
        copy = None
        if fresh:
            ranges = merge_ranges((rows.begin, rows.end) for rows in fresh)
            copy = HostCopy(torch.cat([batch[begin:end] for begin, end in ranges])[:, None], None)
        for name, delivery in ledger.settle(
            fresh, {"rows": copy} if copy else {}, [name for name in step if step[name][2]]
        ).items():
            sent.setdefault(name, []).append(delivery.tensors()["rows"][:, 0].tolist())
    return sent


SCHEDULES: dict[str, tuple[list[Step], dict[str, list[list[int]]]]] = {
    "prefill, then decode": ([{"a": (0, 3, True)}, {"a": (3, 1, True)}], {"a": [[0, 1, 2], [3]]}),
    "chunks of a prefill wait for the first token": (
        [{"a": (0, 2, False)}, {"a": (2, 2, False)}, {"a": (4, 1, True)}],
        {"a": [[0, 1, 2, 3, 4]]},
    ),
    "a batch of wanted and unwanted": (
        [{"x": (0, 4, True), "a": (0, 2, True), "y": (7, 1, True), "b": (0, 1, True)}],
        {"a": [[0, 1]], "b": [[0]]},
    ),
    "preempted in decode and computed again": (
        [{"a": (0, 3, True)}, {"a": (3, 1, True)}, {"a": (0, 5, True)}, {"a": (5, 1, True)}],
        {"a": [[0, 1, 2], [3], [4], [5]]},
    ),
    "preempted in prefill and computed again in other chunks": (
        [{"a": (0, 3, False)}, {"a": (0, 2, False)}, {"a": (2, 3, True)}],
        {"a": [[0, 1, 2, 3, 4]]},
    ),
    "recomputed chunk holds nothing new": (
        [{"a": (0, 4, True)}, {"a": (0, 2, False)}, {"a": (2, 3, True)}],
        {"a": [[0, 1, 2, 3], [4]]},
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_position_is_sent_once(name: str) -> None:
    steps, expected = SCHEDULES[name]
    ledger = CaptureLedger()
    for request_id in expected:
        ledger.open(request_id)
    assert play(ledger, steps) == expected


@pytest.mark.parametrize("seed", range(5))
def test_random_chunks_and_preemptions(seed: int) -> None:
    generator = random.Random(seed)
    prompt, total, computed, steps = 20, 40, 0, []
    while computed < total:
        if computed and generator.random() < 0.2:
            reached, computed = computed, 0  # preempted: all computed positions are computed again
        else:
            reached = computed
        end = min(computed + generator.randint(1, 7), max(prompt, reached + 1)) if computed < prompt else computed + 1
        known = max(prompt, reached)
        steps.append({"a": (computed, end - computed, end >= known)})
        computed = end
    ledger = CaptureLedger()
    ledger.open("a")
    positions = [position for part in play(ledger, steps)["a"] for position in part]
    assert positions == list(range(len(positions)))
    assert len(positions) >= total


def test_nothing_is_kept_of_requests_that_end() -> None:
    ledger = CaptureLedger()
    assert not ledger
    ledger.open("a")
    assert ledger
    assert "a" in ledger
    play(ledger, [{"a": (0, 3, False)}])
    ledger.close("a")
    ledger.close("a")
    assert not ledger
    ledger.open("a")
    assert play(ledger, [{"a": (0, 2, True)}]) == {"a": [[0, 1]]}


def test_only_the_first_delivery_says_so() -> None:
    """Only a request's first delivery has `first` set."""
    ledger = CaptureLedger()
    ledger.open("a")
    firsts = []
    for start in range(3):
        fresh, _ = ledger.plan(compute_spans(["a"], {"a": 1}, {"a": start}))
        firsts.append(ledger.settle(fresh, {"rows": HostCopy(torch.zeros(1, 1), None)}, ["a"])["a"].first)
    assert firsts == [True, False, False]


def test_a_gap_fails_its_request_alone() -> None:
    ledger = CaptureLedger()
    ledger.open("a")
    ledger.open("b")
    fresh, gaps = ledger.plan(compute_spans(["a", "b"], {"a": 2, "b": 2}, {"a": 5, "b": 0}))
    assert [rows.request_id for rows in fresh] == ["b"]
    assert isinstance(gaps["a"], ModelExecutionError)
    assert "a" not in ledger


@pytest.mark.parametrize(
    ("position", "expected"), [(2, [[0, 1, 2, 3], [2, 3]]), (9, [[0, 1, 2, 3]]), (0, [[0, 1, 2, 3]])]
)
def test_a_session_resumes_where_it_was_cut(position: int, expected: list[list[int]]) -> None:
    ledger = CaptureLedger()
    ledger.open("a")
    sent = play(ledger, [{"a": (0, 4, True)}])
    ledger.rewind("a", position)
    ledger.rewind("unknown", position)
    sent["a"] += play(ledger, [{"a": (2, 2, True)}]).get("a", [])
    assert sent["a"] == expected


def test_a_rank_that_copies_nothing_delivers_nothing() -> None:
    ledger = CaptureLedger()
    ledger.open("a")
    fresh, _ = ledger.plan(compute_spans(["a"], {"a": 2}, {"a": 0}))
    assert ledger.settle(fresh, {}, ["a"]) == {}


class FinishedOutput(AsyncModelRunnerOutput):
    """An asynchronous output of vLLM whose tokens have arrived."""

    def __init__(self, output: ModelRunnerOutput) -> None:
        self.output = output

    def get_output(self) -> ModelRunnerOutput:
        return self.output


def test_an_asynchronous_output_gets_rows_extras_and_errors_when_it_is_awaited() -> None:
    output = ModelRunnerOutput(["a", "b", "c"], {"a": 0, "b": 1, "c": 2}, [[1], [2], [3]])
    copy = HostCopy(torch.arange(6.0).reshape(3, 2), None)
    step = StepOutput(
        deliveries={"c": Delivery((HostSlice({"rows": copy}, 0, 1), HostSlice({"rows": copy}, 1, 3)), first=True)},
        extras={"c": {"mrope_delta": torch.tensor([4])}},
        failures={"a": ModelExecutionError("no rows")},
    )
    result = AsyncRowsOutput(FinishedOutput(output), step).get_output()
    assert result.sampled_token_ids == [[1], [2], [3]]
    failed, nothing, delivered = result.pooler_output
    assert unpack(failed, "rows").error == ("ModelExecutionError", "no rows")
    assert nothing is None
    tensors = unpack(delivered, "rows").tensors
    assert torch.equal(tensors["rows"], torch.arange(6.0).reshape(3, 2))
    assert tensors["mrope_delta"].tolist() == [4]


def test_a_step_without_rows_leaves_vllms_output_alone() -> None:
    output = ModelRunnerOutput(["a"], {"a": 0}, [[1]])
    assert StepOutput({}, {}, {}).attach(output).pooler_output is None
