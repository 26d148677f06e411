"""The simulated scheduler of autoregressive steps, in virtual time: no engine, no event loop, no waiting."""

from __future__ import annotations

import pytest

from omni_stage.models.sim.virtual_time.clock import EngineLimits, Made, Sequence, StepClock
from omni_stage.models.sim.virtual_time.prefixes import BLOCK_TOKENS, name_blocks

ROOMY = EngineLimits(max_seqs=8, max_step_tokens=100, kv_tokens=10_000)


def clock(limits: EngineLimits = ROOMY) -> StepClock:
    """Returns a clock: a step takes 10 ms, 1 ms more for each further request, and 0.1 ms for each prompt token."""
    return StepClock(lambda requests, prompt, pairs: 9 + requests + prompt / 10, limits)


def ask(name: str, prompt: int = 10, limit: int = 3, allowed: int | None = None, priority: int = 0) -> Sequence:
    return Sequence(
        request_id=name,
        prompt_tokens=prompt,
        limit=limit,
        allowed=limit if allowed is None else allowed,
        priority=priority,
    )


def of(ids: range, salt: str = "") -> Sequence:
    """Returns a request for one token whose prompt are these ids."""
    sequence = ask(f"{ids} {salt}", prompt=len(ids), limit=1)
    sequence.blocks = name_blocks(ids, salt)
    return sequence


def run(engine: StepClock, *sequences: Sequence) -> list[int]:
    """Returns how many prompt tokens each request reused; they run one after the other."""
    cached = []
    for at, sequence in enumerate(sequences):
        engine.add(sequence, float(at))
        cached += [one.cached for one in engine.advance(at + 1.0)]
    return cached


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


def test_full_blocks_of_earlier_prompts_are_reused_but_never_the_last_position() -> None:
    first, longer, other = range(40), range(64), range(1, 65)
    assert run(clock(), of(first), of(longer), of(longer), of(other)) == [0, 32, 48, 0]
    assert run(clock(), ask("a", prompt=40, limit=1), ask("b", prompt=40, limit=1)) == [0, 0]


def test_salts_share_nothing() -> None:
    assert run(clock(), of(range(40), "a"), of(range(40), "b"), of(range(40)), of(range(40), "a")) == [0, 0, 0, 32]


def test_requests_share_what_one_of_them_has_computed_so_far() -> None:
    engine = clock(EngineLimits(max_seqs=8, max_step_tokens=32, kv_tokens=1000))
    engine.add(of(range(80)), 0.0)
    engine.advance(0.0140)
    engine.add(of(range(70)), 0.0140)
    assert {one.index: one.cached for one in engine.advance(1.0) if one.cached} == {0: 32 * 2}


def test_blocks_that_were_used_longest_ago_make_room() -> None:
    tight = EngineLimits(max_seqs=8, max_step_tokens=1000, kv_tokens=8 * BLOCK_TOKENS)
    kept, other, large = range(64), range(1000, 1064), range(2000, 2096)
    assert run(clock(tight), of(kept), of(other), of(kept), of(other)) == [0, 0, 48, 48]
    # The large prompt leaves room for two blocks. Of a prompt, the first blocks stay longest.
    assert run(clock(tight), of(kept), of(other), of(large), of(other), of(kept)) == [0, 0, 0, 32, 0]


def test_a_preempted_request_reuses_its_own_blocks() -> None:
    engine = clock(EngineLimits(max_seqs=8, max_step_tokens=1000, kv_tokens=100))
    engine.add(of(range(40)), 0.0)
    late = of(range(100, 140))
    for sequence in (engine.running[0], late):
        sequence.limit = sequence.allowed = 20
    engine.add(late, 0.001)
    made = engine.advance(10.0)
    assert engine.preempted == 1
    assert {one.cached for one in made} == {0}
    assert engine.running == engine.waiting == []


def test_attention_pairs_a_prompts_new_tokens_with_all_earlier_ones() -> None:
    seen: list[tuple[int, int]] = []

    def cost(requests: int, prompt: int, pairs: int) -> float:
        seen.append((prompt, pairs))
        return 10.0

    engine = StepClock(cost, ROOMY)
    run(engine, of(range(64)), of(range(80)))
    assert seen == [(64, 64 * 64 // 2), (16, 16 * 64 + 16 * 16 // 2)]
