"""When the rows of an edge are sent, tested with a simulated clock."""

from __future__ import annotations

import pytest

from omni_stage.service.edges.outbox import EARLY_STEPS, LONGEST_S, Pacing

MANY = 64


def send_times(pacing: Pacing, step_s: float, steps: int, open_calls: int) -> list[float]:
    """Returns how many seconds the oldest row of each message waited. Messages leave only at steps and due times."""
    waits, oldest = [], None
    due = float("inf")
    for number in range(steps):
        now = number * step_s
        if oldest is not None and due <= now:
            waits.append(due - oldest)
            oldest = None
            pacing.sent()
        oldest = now if oldest is None else oldest
        due = pacing.add(1, now, open_calls)
        if due <= now:
            waits.append(now - oldest)
            oldest = None
            pacing.sent()
    return waits


@pytest.mark.parametrize("open_calls", [1, 8, MANY])
def test_the_first_rows_go_at_once(open_calls: int) -> None:
    assert send_times(Pacing(), 0.01, EARLY_STEPS, open_calls) == [0.0] * EARLY_STEPS


def test_rows_that_the_first_audio_needs_go_at_once() -> None:
    """In Qwen2.5-Omni, token2wav's first window needs 24 codec tokens. None of their rows waits for later rows."""
    assert send_times(Pacing(early_steps=24), 0.005, 24, MANY) == [0.0] * 24


def test_with_many_calls_later_rows_share_messages_and_are_not_late() -> None:
    """With many calls, later rows share messages and wait at most LONGEST_S."""
    waits = send_times(Pacing(), 0.01, 200, MANY)[EARLY_STEPS:]
    assert len(waits) <= (200 - EARLY_STEPS) / 3, "a message has at least three rows on average"
    assert max(waits) <= LONGEST_S + 1e-9


def test_rows_of_a_single_call_never_wait() -> None:
    """With a single open call, every row is sent immediately."""
    assert set(send_times(Pacing(), 0.01, 200, 1)) == {0.0}


@pytest.mark.parametrize("step_s", [0.02, 0.03, 0.2])
def test_a_stage_that_is_no_faster_than_speech_never_waits(step_s: float) -> None:
    assert set(send_times(Pacing(), step_s, 50, MANY)) == {0.0}


def test_the_audio_that_the_reader_has_bounds_the_wait() -> None:
    """100 rows buffer 2 s of audio. After 3 s without a step the buffer is empty, so the next row does not wait."""
    pacing = Pacing()
    for number in range(100):
        pacing.add(1, number * 0.001, MANY)
        pacing.sent()
    assert pacing.add(1, 0.101, MANY) > 0.101
    pacing.sent()
    assert pacing.add(1, 3.1, MANY) == 3.1


def test_rows_that_nobody_reads_before_the_end_wait_even_alone() -> None:
    """Rows of a Full edge wait up to LONGEST_S, even with a single open call."""
    waits = send_times(Pacing(streamed=False), 0.005, 100, 1)
    assert waits[0] == 0.0, "the first row opens the call, so it does not wait"
    assert len(waits) <= 20
    assert max(waits) <= LONGEST_S + 1e-9


@pytest.mark.parametrize(("open_calls", "longest"), [(1, 0.0025), (8, 0.02), (MANY, 0.16), (10 * MANY, 0.16)])
def test_rows_that_play_longer_may_wait_longer(open_calls: int, longest: float) -> None:
    """Qwen3-Omni's talker makes a frame of 80 ms in 22 ms: a listener's audio grows, although a row takes 20 ms."""
    waits = send_times(Pacing(row_plays_s=0.08), 0.022, 200, open_calls)[EARLY_STEPS:]
    assert max(waits) <= longest + 1e-9
    if open_calls >= MANY:
        assert len(waits) <= (200 - EARLY_STEPS) / 4
