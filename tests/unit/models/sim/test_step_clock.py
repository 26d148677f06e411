"""The simulated scheduler of autoregressive steps, in virtual time: no engine, no event loop, no waiting."""

from __future__ import annotations

import pytest

from omni_stage.models.sim.virtual_time.clock import EngineLimits, Made, Sequence, StepClock

ROOMY = EngineLimits(max_seqs=8, max_step_tokens=100, kv_tokens=10_000)


def clock(limits: EngineLimits = ROOMY) -> StepClock:
    """Returns a clock: a step takes 10 ms, 1 ms more for each further request, and 0.1 ms for each prompt token."""
    return StepClock(lambda requests, prompt: 9 + requests + prompt / 10, limits)


def ask(name: str, prompt: int = 10, limit: int = 3, allowed: int | None = None, priority: int = 0) -> Sequence:
    return Sequence(
        request_id=name,
        prompt_tokens=prompt,
        limit=limit,
        allowed=limit if allowed is None else allowed,
        priority=priority,
    )


def times(made: list[Made], name: str) -> list[float]:
    return [round(one.time * 1000, 3) for one in made if one.request_id == name]


def test_the_first_token_takes_the_prompt_and_later_ones_a_step() -> None:
    engine = clock()
    engine.add(ask("a"), 0.0)
    made = engine.advance(1.0)
    # The step that computes the prompt also generates the first token, as in vLLM.
    assert times(made, "a") == [11, 21, 31]
    assert [one.index for one in made] == [0, 1, 2]
    assert [one.last for one in made] == [False, False, True]
    assert engine.next_time is None
    assert not engine.running


def test_nothing_ends_before_its_time_and_a_late_reader_gets_several_tokens_at_once() -> None:
    engine = clock()
    engine.add(ask("a"), 0.0)
    assert engine.advance(0.0109) == []
    assert times(engine.advance(0.022), "a") == [11, 21]
    assert times(engine.advance(5.0), "a") == [31]


def test_requests_that_come_during_a_step_join_the_next_one() -> None:
    engine = clock()
    engine.add(ask("a", limit=4), 0.0)
    engine.advance(0.005)
    engine.add(ask("b", limit=2), 0.005)
    made = engine.advance(1.0)
    # b's prompt is in a's second step: 9 + 2 + 1 ms.
    assert times(made, "a") == [11, 23, 34, 44]
    assert times(made, "b") == [23, 34]
    assert next(one.scheduled for one in made if one.request_id == "b") == pytest.approx(0.011)


def test_a_prompt_longer_than_a_step_is_computed_in_parts_beside_others() -> None:
    """A prompt longer than max_step_tokens takes several steps."""
    engine = clock(EngineLimits(max_seqs=8, max_step_tokens=100, kv_tokens=10_000))
    engine.add(ask("long", prompt=250, limit=1), 0.0)
    assert times(engine.advance(1.0), "long") == [round(3 * 10 + 25.0, 3)]


def test_a_request_beyond_the_most_waits_and_a_lower_priority_goes_first() -> None:
    engine = clock(EngineLimits(max_seqs=1, max_step_tokens=100, kv_tokens=10_000))
    engine.add(ask("a", limit=1), 0.0)
    engine.add(ask("b", limit=1), 0.001)
    engine.add(ask("urgent", limit=1, priority=-1), 0.002)
    assert [one.request_id for one in engine.advance(1.0)] == ["a", "urgent", "b"]


def test_input_that_streams_holds_a_request_up_and_keeps_its_place() -> None:
    """A request that waits for streamed input stays in the batch, but takes part in no step."""
    engine = clock()
    engine.add(ask("a", limit=9, allowed=1), 0.0)
    assert times(engine.advance(1.0), "a") == [11]
    assert engine.next_time is None
    assert [one.request_id for one in engine.running] == ["a"]
    engine.allow("a", 3, 2.0)
    assert times(engine.advance(3.0), "a") == [2010, 2020]
    engine.allow("a", 4, 3.0, limit=4)
    (last,) = engine.advance(4.0)
    assert last.last


def test_what_is_aborted_makes_nothing_more_though_its_step_takes_its_time() -> None:
    """An aborted request generates nothing more. The step that it was in still takes its full time."""
    engine = clock()
    engine.add(ask("a"), 0.0)
    engine.add(ask("b"), 0.001)
    engine.abort("a", 0.002)
    made = engine.advance(1.0)
    assert times(made, "a") == []
    assert times(made, "b")[0] == 22
    engine.abort("unknown", 2.0)


def test_the_latest_request_gives_up_its_kv_when_the_cache_is_full_and_starts_over() -> None:
    """When the KV cache is full, the request that arrived last is preempted, and is computed again later."""
    engine = clock(EngineLimits(max_seqs=8, max_step_tokens=100, kv_tokens=26))
    engine.add(ask("a", prompt=10, limit=10), 0.0)
    engine.add(ask("b", prompt=10, limit=10), 0.001)
    made = engine.advance(10.0)
    assert len(times(made, "a")) == len(times(made, "b")) == 10
    assert engine.preempted >= 1
    # a was never preempted. b computed its prompt and its earlier output again.
    assert times(made, "a")[-1] < times(made, "b")[-1]
    assert [one.index for one in made if one.request_id == "b"] == list(range(10))


def test_a_request_waits_while_its_prompt_does_not_fit_the_cache() -> None:
    engine = clock(EngineLimits(max_seqs=8, max_step_tokens=100, kv_tokens=20))
    engine.add(ask("a", prompt=15, limit=2), 0.0)
    engine.add(ask("b", prompt=15, limit=1), 0.0)
    assert [one.request_id for one in engine.advance(1.0)] == ["a", "a", "b"]
