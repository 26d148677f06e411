"""Which windows a simulated decoder computes from the frames that have arrived, and in which order, in virtual time."""

from __future__ import annotations

import math

import pytest

from omni_stage.models.sim.tables import AudioShape
from omni_stage.models.sim.virtual_time.windows import Job, Window, WindowClock, next_window

SHAPE = AudioShape(frame_ms={1: 1.0}, first_frames=4, next_frames=10, back_frames=6, ahead_frames=2)


def cut(arrivals: list[int]) -> list[Window]:
    """Returns the windows of frames that arrive in batches of these sizes. The last batch ends the stream."""
    windows, there, decoded = [], 0, 0
    for number, count in enumerate(arrivals):
        there += count
        ended = number == len(arrivals) - 1
        while (window := next_window(decoded, there, ended=ended, shape=SHAPE)) is not None:
            windows.append(window)
            decoded = window.until
    return windows


@pytest.mark.parametrize("arrivals", [[33], [1] * 33, [5, 28], [32, 1]])
def test_the_windows_decode_every_frame_once_however_they_come(arrivals: list[int]) -> None:
    windows = cut(arrivals)
    assert [frame for window in windows for frame in range(window.first, window.until)] == list(range(33))
    assert windows[0] == Window(0, 0, 4, 6)
    assert windows[1] == Window(0, 4, 14, 16)
    assert windows[2] == Window(8, 14, 24, 26)
    assert windows[-1].end == 33


def test_a_window_waits_for_the_frames_behind_it() -> None:
    assert next_window(0, 5, ended=False, shape=SHAPE) is None
    assert next_window(0, 5, ended=True, shape=SHAPE) == Window(0, 0, 5, 5)
    assert next_window(5, 5, ended=True, shape=SHAPE) is None


@pytest.mark.parametrize(
    ("waiting", "gather", "ended", "made"),
    [(1, 0, False, 1), (3, 0, False, 2), (3, 4, False, None), (3, 4, True, 2), (9, 8, False, 8), (40, 8, False, 16)],
)
def test_a_window_of_a_decoder_that_gathers(waiting: int, gather: int, ended: bool, made: int | None) -> None:
    shape = AudioShape(frame_ms={1: 1.0}, first_frames=1, next_frames=1, most_frames=16)
    window = next_window(5, 5 + waiting, ended=ended, shape=shape, gather=gather)
    assert (window and window.until - window.first) == made


def job(name: str, due: float, frames: int = 10) -> Job:
    return Job(request_id=name, frames=frames, due=due)


def test_first_windows_come_first_and_then_the_request_that_runs_out_of_audio_soonest() -> None:
    """First windows come first, then the stream whose audio runs out soonest."""
    clock = WindowClock(lambda windows, frames, whole: 10.0 * windows, max_batch=8)
    clock.add(job("running", 0.0), 0.0)
    for name, due in (("late", 9.0), ("soon", 2.0), ("new", -math.inf)):
        clock.add(job(name, due), 0.001)
    done = clock.advance(1.0)
    assert [one.request_id for one, _ in done] == ["running", "new", "soon", "late"]
    assert [round(ends, 3) for _, ends in done] == [0.01, 0.02, 0.03, 0.04]


def test_a_step_takes_more_windows_as_long_as_that_makes_them_cheaper() -> None:
    clock = WindowClock(lambda windows, frames, whole: max(30.0, 10.0 * windows), max_batch=8)
    clock.add(job("running", 0.0), 0.0)
    for name in "abcde":
        clock.add(job(name, -math.inf), 0.001)
    ends = {one.request_id: round(end, 3) for one, end in clock.advance(1.0)}
    assert ends == {"running": 0.03, "a": 0.06, "b": 0.06, "c": 0.06, "d": 0.09, "e": 0.09}


def test_what_is_aborted_no_longer_waits() -> None:
    clock = WindowClock(lambda windows, frames, whole: 10.0 * windows, max_batch=1)
    clock.add(job("a", 0.0), 0.0)
    clock.add(job("b", 0.0), 0.0)
    clock.abort("b")
    assert [one.request_id for one, _ in clock.advance(1.0)] == ["a"]
    assert clock.next_time is None
