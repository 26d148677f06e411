"""Listeners get their next window of audio in the order in which their audio runs out."""

from __future__ import annotations

import pytest

from omni_stage.vllm_adapter.scheduling.playback import FIRST_AHEAD_S, Playback, rows_to_gather

NOW = 100.0


@pytest.mark.parametrize(
    ("sent", "runs_out"),
    [
        ([], None),
        ([(1.0, 0.24)], 1.24),
        ([(1.0, 0.24), (1.1, 0.72)], 1.96),  # in time: plays after the first chunk
        ([(1.0, 0.24), (3.0, 0.72)], 3.72),  # late: playback resumes when the chunk arrives
        ([(1.0, 0.24), (3.0, 0.72), (3.1, 0.72)], 4.44),
    ],
)
def test_when_the_audio_runs_out(sent: list[tuple[float, float]], runs_out: float | None) -> None:
    playback = Playback()
    for now, seconds in sent:
        playback.add(now, seconds)
    assert playback.runs_out == pytest.approx(runs_out)


def test_first_windows_come_before_all_in_the_order_in_which_they_came() -> None:
    """The first windows of new streams, in order of arrival, come before the windows of streams that already play.

    Only a stream that has been silent for more than FIRST_AHEAD_S comes before new streams.
    """
    late = Playback(runs_out=NOW - FIRST_AHEAD_S + 1)
    assert Playback().due(NOW) < Playback().due(NOW + 0.001) < late.due(NOW) < Playback(runs_out=NOW + 1).due(NOW)
    silent = Playback(runs_out=NOW - FIRST_AHEAD_S - 1)
    assert silent.due(NOW) < Playback().due(NOW), "new streams do not starve a stream that has long been silent"


def test_too_many_listeners_are_served_in_turns() -> None:
    """Computing a window of 1 s takes 0.5 s, so five listeners are too many. All fall behind equally."""
    listeners, now, served = [Playback() for _ in range(5)], 0.0, [0] * 5
    for _ in range(100):
        index = min(range(5), key=lambda item: listeners[item].due(now))
        now += 0.5
        listeners[index].add(now, 1.0)
        served[index] += 1
    assert served == [20] * 5


def test_requests_that_can_be_served_in_time_have_no_silence() -> None:
    """Nine listeners use 90 % of the decoder's capacity: computing a window of 1 s takes 0.1 s. None hears a gap."""
    listeners, now, gaps = [Playback() for _ in range(9)], 0.0, 0
    for _ in range(400):
        index = min(range(9), key=lambda item: listeners[item].due(now))
        runs_out, now = listeners[index].runs_out, now + 0.1
        gaps += runs_out is not None and now > runs_out
        listeners[index].add(now, 1.0)
    assert gaps == 0


@pytest.mark.parametrize(
    ("runs_out", "took", "until"),
    [
        (None, 0.0, NOW),  # nobody waits before the first audio
        (NOW + 1.0, 0.0, NOW + 0.5),
        (NOW + 1.0, 0.1, NOW + 0.5),
        (NOW + 1.0, 0.4, NOW + 0.2),  # a slow decoder needs the time itself
        (NOW + 0.1, 0.4, NOW - 0.7),
        (NOW - 1.0, 0.0, NOW - 1.0),  # silent already
    ],
)
def test_a_window_waits_at_most_for_half_of_the_audio_that_is_left(
    runs_out: float | None, took: float, until: float
) -> None:
    found = Playback(runs_out).gathers_until(NOW, took)
    assert found == pytest.approx(until) or (found <= NOW and until <= NOW)


def test_windows_double_up_to_eight_rows() -> None:
    assert [rows_to_gather(last) for last in (0, 1, 2, 3, 4, 5, 64)] == [0, 2, 4, 6, 8, 8, 8]
