"""Tests the rule that decides which prompts wait until earlier requests have their first audio.

First the rule alone, then OmniScheduler with a fake clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from omni_stage.vllm_adapter.scheduling.playback import PACE_KEY
from omni_stage.vllm_adapter.scheduling.playback_order import Group, StepCost
from omni_stage.vllm_adapter.scheduling.scheduler import OmniAsyncScheduler, OmniScheduler

CPU_COST = (0.023, 0.0011)
"""Seconds per step, and additional seconds per token: hidden size 1,024, 14 layers, float32, one core."""
GPU_COST = (0.007, 0.00002)
PROMPT, FIRST, REPLY = 100, 12, 24


def test_a_line_through_the_steps() -> None:
    """StepCost fits seconds per step and seconds per token to the measured steps."""
    cost = StepCost()
    for index in range(200):
        tokens = (1, 8, 64, 30)[index % 4]
        cost.add(tokens, 0.02 + 0.001 * tokens + 0.002 * (index % 3 - 1))
    line = cost.line()
    assert line is not None
    assert line == pytest.approx((0.02, 0.001), rel=0.1)


def test_what_is_not_known_is_not_guessed() -> None:
    """StepCost has no result with too few steps, or with steps of only one size."""
    few, equal = StepCost(), StepCost()
    for _ in range(3):
        few.add(1, 0.01)
        few.add(64, 0.1)
    for _ in range(100):
        equal.add(8, 0.05)
    assert few.line() is None
    assert equal.line() is None, "steps of one size do not show what a token costs"


def count_groups(cost: tuple[float, float] | None, prompts: int, tokens: int) -> int:
    """Returns the number of steps that read so many prompts of `tokens`, if a group is heard after one step."""
    groups, waiting = 0, prompts
    while waiting:
        group = Group(cost, unheard=0, waiting=waiting, steps_left=0)
        while waiting and group.admits(tokens, 1):
            waiting -= 1
        groups += 1
    return groups


@given(
    fixed=st.floats(0.002, 0.15),
    per_token=st.floats(1e-6, 2e-3),
    batches=st.lists(st.integers(1, 64), min_size=1, max_size=4),
    prompt=st.integers(16, 4096),
    every=st.integers(2, 40),
    slow_at=st.integers(0, 120),
    slowness=st.floats(1.0, 1000.0),
    slow_tokens=st.none() | st.integers(1, 8192),
)
@example(0.01, 7e-6, [8], 69, 16, 60, 100.0, 483)
def test_one_slow_step_is_ignored(
    fixed: float,
    per_token: float,
    batches: list[int],
    prompt: int,
    every: int,
    slow_at: int,
    slowness: float,
    slow_tokens: int | None,
) -> None:
    """One step that takes up to 1,000 times as long as steps of its size do changes the number of groups of a burst by
    at most one, whenever it comes, except for 50 steps at most.

    `every`: one step in so many also reads a prompt. `slow_tokens`: tokens of the slow step, if not as others."""
    slow, steady = StepCost(), StepCost()
    differed = 0
    for index in range(200):
        tokens = batches[index % len(batches)] + (prompt if index % every == every - 1 else 0)
        if index == slow_at and slow_tokens is not None:
            tokens = slow_tokens
        seconds = fixed + per_token * tokens
        steady.add(tokens, seconds)
        slow.add(tokens, seconds * slowness if index == slow_at else seconds)
        lines = slow.line(), steady.line()
        if lines[0] != lines[1]:
            differed += abs(count_groups(lines[0], 32, 69) - count_groups(lines[1], 32, 69)) > 1
    assert differed <= 50


def test_a_prompt_cheaper_than_a_step_always_joins() -> None:
    """With the last place of a group of 64, too: a step more would cost every one of them more."""
    group = Group((0.01, 0.0001), unheard=64, waiting=1, steps_left=1)
    assert group.admits(100, 1)
    assert not group.admits(101, 1)


@pytest.mark.parametrize(("cost", "joined"), [(CPU_COST, 6), (GPU_COST, 8), (None, 8), ((0.023, 10.0), 1)])
def test_how_many_of_eight_are_one_group(cost: tuple[float, float] | None, joined: int) -> None:
    """The more a token costs, the fewer of eight waiting prompts join the group."""
    group = Group(cost, unheard=0, waiting=8, steps_left=0)
    admitted = [group.admits(145, FIRST) for _ in range(8)]
    assert admitted == [True] * joined + [False] * (8 - joined)


def test_long_prompts_wait_on_a_gpu_too() -> None:
    group = Group(GPU_COST, unheard=0, waiting=8, steps_left=0)
    assert sum(group.admits(30_000, 24) for _ in range(8)) < 8


def test_nobody_overtakes_a_prompt_that_waits() -> None:
    """If short prompts could overtake a long one, a steady flow of short prompts would let it wait forever."""
    group = Group(GPU_COST, unheard=1, waiting=4, steps_left=FIRST)
    assert [group.admits(tokens, FIRST) for tokens in (100, 30_000, 100)] == [True, False, False]


def run_burst(scheduler: Any, ar_request: Any, run_step: Any, cost: tuple[float, float]) -> list[tuple[float, float]]:
    """Runs one request, which shows what steps cost, and then eight concurrently.

    Returns for each of the eight when it had FIRST tokens and when it ended, in seconds after their start.
    """
    scheduler.now = 0.0
    scheduler.clock = lambda: scheduler.now
    fixed, per_token = cost

    def advance() -> None:
        output = scheduler.schedule()
        scheduler.now += fixed + per_token * output.total_num_scheduled_tokens
        scheduler.update_from_output(output, run_step(scheduler, output))

    scheduler.add_request(ar_request("before", tokens=PROMPT, max_tokens=REPLY))
    while scheduler.requests:
        advance()
    began = scheduler.now
    for index in range(8):
        scheduler.add_request(ar_request(f"{index}", tokens=PROMPT, max_tokens=REPLY))
    burst = dict(scheduler.requests)
    heard: dict[str, float] = {}
    ends: dict[str, float] = {}
    while scheduler.requests:
        advance()
        for name, request in burst.items():
            if request.num_output_tokens >= FIRST:
                heard.setdefault(name, scheduler.now - began)
            if name not in scheduler.requests:
                ends.setdefault(name, scheduler.now - began)
    return [(heard[name], ends[name]) for name in burst]


@pytest.mark.parametrize("scheduler_class", [OmniScheduler, OmniAsyncScheduler])
@pytest.mark.parametrize(("cost", "gain"), [(CPU_COST, 0.85), (GPU_COST, 1.01)], ids=["cpu", "gpu"])
def test_first_audio_of_a_burst(
    scheduler_class: type,
    cost: tuple[float, float],
    gain: float,
    make_scheduler: Callable[..., Any],
    ar_request: Any,
    run_step: Any,
) -> None:
    """Compares runs with `heard_early` to runs without it. Where tokens are expensive (CPU), the median first audio
    comes at least 15 % sooner with it. Where they are cheap (GPU), it comes at most 1 % later. In both cases the last
    reply ends at most 25 % later."""
    runs = {}
    for early in (True, False):
        pace = {"tokens_per_second": 50.0, "first_tokens": FIRST, "heard_early": early}
        scheduler = make_scheduler(
            scheduler_class, additional_config={PACE_KEY: pace}, max_num_batched_tokens=64, kv_blocks=128
        )
        runs[early] = run_burst(scheduler, ar_request, run_step, cost)
    first = {early: statistics.median(heard for heard, _ in run) for early, run in runs.items()}
    last = {early: max(end for _, end in run) for early, run in runs.items()}
    assert first[True] <= gain * first[False]
    assert last[True] <= 1.25 * last[False]
