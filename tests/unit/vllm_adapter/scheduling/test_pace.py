"""Which requests step first when tokens are played as speech. Tests the rule, its fairness, and OmniScheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st
from vllm.v1.request import RequestStatus

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.scheduling.playback import FIRST_AHEAD_S, PACE_KEY, Listener, Pace
from support.engines.scheduler_classes import BOTH

PACE = Pace(tokens_per_second=10, first_tokens=4)


def test_a_listener_hears_nothing_before_the_first_window() -> None:
    listener = Listener.at(100.0, tokens=7)
    assert listener.due == 100.0 - FIRST_AHEAD_S
    assert listener.note(PACE, 101.0, 7 + 3) == 100.0 - FIRST_AHEAD_S
    assert listener.note(PACE, 102.0, 7 + 4) == pytest.approx(102.4)
    assert listener.note(PACE, 102.1, 7 + 6) == pytest.approx(102.6), "in time: queued after the audio that is playing"
    assert listener.note(PACE, 102.2, 7 + 6) == pytest.approx(102.6)
    assert listener.note(PACE, 200.0, 7 + 7) == pytest.approx(200.1), "late: played immediately, after a silence"


@pytest.mark.parametrize(
    "values",
    [
        3,
        {},
        {"tokens_per_second": 0},
        {"tokens_per_second": float("nan")},
        {"tokens_per_second": True},
        {"tokens_per_second": 50, "first_tokens": 0},
        {"tokens_per_second": 50, "heard_early": 1},
        {"tokens_per_second": 50, "other": 1},
    ],
)
def test_invalid_settings_are_refused(values: object) -> None:
    """Invalid settings raise ConfigurationError."""
    with pytest.raises(ConfigurationError, match=PACE_KEY):
        Pace.from_additional_config({PACE_KEY: values})


@given(
    old=st.integers(1, 8), step_s=st.floats(0.01, 1.0), newcomers_every=st.integers(1, 3), rate=st.floats(1.0, 100.0)
)
def test_no_listener_starves(old: int, step_s: float, newcomers_every: int, rate: float) -> None:
    """Each step serves the listener that is due first, and more listeners come than can be served.

    A listener that waits is served before those that began to wait more than FIRST_AHEAD_S later.
    """
    pace, now = Pace(rate), 0.0
    listeners = {index: Listener.at(now, 0) for index in range(old)}
    tokens = dict.fromkeys(listeners, 0)
    waits_since = dict.fromkeys(listeners, 0.0)
    for step in range(300):
        if step % newcomers_every == 0:
            index = len(tokens)
            listeners[index], tokens[index], waits_since[index] = Listener.at(now, 0), 0, now
        chosen = min(listeners, key=lambda index: (listeners[index].due, index))
        overtaken = [index for index in listeners if waits_since[index] + FIRST_AHEAD_S < waits_since[chosen]]
        assert not overtaken, "the chosen listener began to wait much later"
        now += step_s
        tokens[chosen] += 1
        waits_since[chosen] = max(now, listeners[chosen].note(pace, now, tokens[chosen]))


@pytest.fixture
def paced(make_scheduler: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that builds a scheduler with a pace and a clock that only the test advances."""

    def build(scheduler_class: type, **settings: Any) -> Any:
        values = {"tokens_per_second": 10, "first_tokens": 4}
        scheduler = make_scheduler(scheduler_class, additional_config={PACE_KEY: values}, **settings)
        scheduler.now = 0.0
        scheduler.clock = lambda: scheduler.now
        return scheduler

    return build


def advance(scheduler: Any, run_step: Callable[..., Any], seconds: float) -> dict[str, int]:
    """Runs one step that takes `seconds`. Returns the number of tokens that it computed, by request."""
    output = scheduler.schedule()
    scheduler.now += seconds
    scheduler.update_from_output(output, run_step(scheduler, output))
    return dict(output.num_scheduled_tokens)


@BOTH
def test_the_request_with_the_most_unplayed_audio_is_preempted(
    scheduler_class: type, paced: Any, ar_request: Any, run_step: Any
) -> None:
    """The request with the most unplayed audio is preempted. vLLM would preempt the new one, which is still silent."""
    scheduler = paced(scheduler_class, kv_blocks=6)
    scheduler.add_request(ar_request("plays", tokens=5, max_tokens=90))
    for _ in range(30):
        advance(scheduler, run_step, 0.01)
    scheduler.add_request(ar_request("new", tokens=30, max_tokens=60))
    for _ in range(20):
        advance(scheduler, run_step, 0.01)
        if RequestStatus.PREEMPTED in {request.status for request in scheduler.requests.values()}:
            break
    assert scheduler.requests["plays"].status == RequestStatus.PREEMPTED
    assert scheduler.requests["new"].status == RequestStatus.RUNNING


@BOTH
def test_the_listener_that_would_hear_silence_next_steps_first(
    scheduler_class: type, paced: Any, ar_request: Any, run_step: Any
) -> None:
    """A step has room for two tokens and three requests need one each, so the requests take turns."""
    scheduler = paced(scheduler_class, max_num_seqs=4, max_num_batched_tokens=4)
    for name in ("a", "b", "c"):
        scheduler.add_request(ar_request(name, tokens=1, max_tokens=60))
    for _ in range(8):
        advance(scheduler, run_step, 0.001)
    made = {name: scheduler.requests[name].num_output_tokens for name in "abc"}
    assert min(made.values()) >= 4, "all have audio that plays"
    scheduler.max_num_scheduled_tokens = 2
    steps = [set(advance(scheduler, run_step, 0.001)) for _ in range(12)]
    assert all(len(step) == 2 for step in steps)
    made = {name: scheduler.requests[name].num_output_tokens for name in "abc"}
    assert max(made.values()) - min(made.values()) <= 2, "they take turns; vLLM would leave c out"


@BOTH
def test_ends_leave_nothing_behind(scheduler_class: type, paced: Any, ar_request: Any, run_step: Any) -> None:
    scheduler = paced(scheduler_class)
    scheduler.add_request(ar_request("ends", max_tokens=3))
    scheduler.add_request(ar_request("aborted", max_tokens=50))
    for _ in range(6):
        advance(scheduler, run_step, 0.1)
    scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)
    assert len(scheduler._playback) == 0
