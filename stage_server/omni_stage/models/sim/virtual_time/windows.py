"""A decoder's work in virtual time: which windows of audio make up a step, and when the step ends. Pure.

Among streams of equal priority, the one whose playback would stall next goes first: first windows before all others,
then the stream whose buffered audio runs out soonest. Windows are added to a step as long as that reduces the time per
window. If the GPU's compute is the limit, larger steps save nothing, so the first stream's window gets its own step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

from omni_stage.models.sim.tables import AudioShape

_CHEAPER = 0.999
"""A window is added to a step only if the cost per window then falls below this share of the cost per window before. A
smaller reduction may be a rounding error."""


@dataclass(frozen=True, slots=True)
class Window:
    """Frames [begin, end) are computed. Of these, frames [first, until) become audio."""

    begin: int
    first: int
    until: int
    end: int

    @property
    def frames(self) -> int:
        """Number of frames that are computed."""
        return self.end - self.begin


def next_window(first: int, frames: int, *, ended: bool, shape: AudioShape, gather: int = 0) -> Window | None:
    """Returns the window whose audio starts at frame `first`; None if more frames must arrive.

    `frames`: number of frames that have arrived; `ended`: whether these are all. `gather`: for how many frames a window
    waits that may wait, if the table sets most_frames.
    """
    begin = max(0, first - shape.back_frames)
    until = first + (shape.next_frames if first else shape.first_frames)
    waiting = frames - shape.ahead_frames - first
    if first and shape.most_frames and waiting >= shape.next_frames:
        if waiting < min(gather, shape.most_frames) and not ended:
            return None
        until = first + (1 << (min(waiting, shape.most_frames).bit_length() - 1))
    if frames >= until + shape.ahead_frames:
        return Window(begin, first, until, until + shape.ahead_frames)
    if ended and frames > first:
        return Window(begin, first, frames, frames)
    return None


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """A waiting window, or a complete utterance."""

    request_id: str
    frames: int
    due: float
    """When playback runs out of audio; minus infinity for the first window."""
    is_whole: bool = False
    priority: int = 0
    arrived: float = 0.0
    scheduled: float = 0.0


@dataclass(slots=True)
class WindowClock:
    """The scheduler and the clock of one decoder. Times are seconds of any monotonic clock."""

    cost_ms: Callable[[int, int, bool], float]
    """Returns a step's milliseconds from its number of windows, the frames of the longest window, and whether that
    window is a complete utterance."""
    max_batch: int
    waiting: list[Job] = field(default_factory=list)
    frames: int = 0
    """Number of frames computed so far."""
    _step: tuple[float, list[Job]] | None = None

    @property
    def next_time(self) -> float | None:
        """When the running step ends; None if nothing runs."""
        return None if self._step is None else self._step[0]

    @property
    def running(self) -> int:
        """Number of windows in the running step."""
        return 0 if self._step is None else len(self._step[1])

    def add(self, job: Job, now: float) -> None:
        """Queue a window that has arrived."""
        job.arrived = now
        self.waiting.append(job)
        self._begin(now)

    def abort(self, request_id: str) -> None:
        """Remove a request's waiting windows. A running step with one of its windows still takes its full time."""
        self.waiting = [job for job in self.waiting if job.request_id != request_id]

    def advance(self, now: float) -> list[tuple[Job, float]]:
        """Returns the windows of the steps that have ended by `now`, in order, each with the time when it ended."""
        done: list[tuple[Job, float]] = []
        while self._step is not None and self._step[0] <= now:
            (ends, jobs), self._step = self._step, None
            done += [(job, ends) for job in jobs]
            self.frames += sum(job.frames for job in jobs)
            self._begin(ends)
        return done

    def _begin(self, now: float) -> None:
        if self._step is not None or not self.waiting:
            return
        self.waiting.sort(key=attrgetter("priority", "due", "arrived"))
        count, cost = 1, self._cost(1)
        for more in range(2, min(self.max_batch, len(self.waiting)) + 1):
            if self._cost(more) / more > cost / count * _CHEAPER:
                break
            count, cost = more, self._cost(more)
        jobs, self.waiting = self.waiting[:count], self.waiting[count:]
        for job in jobs:
            job.scheduled = now
        self._step = (now + cost / 1000, jobs)

    def _cost(self, count: int) -> float:
        """Returns the milliseconds of a step with the first `count` waiting windows."""
        longest = max(self.waiting[:count], key=attrgetter("is_whole", "frames"))
        return self.cost_ms(count, longest.frames, longest.is_whole)
