"""Computes a request's timeline: what each stage did and when. timeline_plot.py draws it.

Each stage measures nanoseconds since it accepted the request, on its own monotonic clock. The wall-clock times at which
the stages accepted the request place their lanes on one axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omni_proto.client import StageTimings

NS_PER_S = 1e9


class Phase(StrEnum):
    """What a stage does during a span; the value is the legend's text."""

    INPUT = "input"
    QUEUE = "queue"
    PREFILL = "prefill"
    GENERATE = "generate"
    FINISH = "finish"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase from start to end, in seconds since the request's first Accepted."""

    phase: Phase
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The lane of one stage."""

    stage: str
    work: tuple[Span, ...]
    """Phases that follow one another: input, queue, prefill, generate, finish."""
    transfer: Span | None = None
    """The time in which tensors were sent downstream. It overlaps the work."""
    steps: tuple[float, ...] = ()
    """The time of each output of the engine, in seconds."""
    first_audio: float | None = None
    """When the first audio was sent, in seconds."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All stages of one request."""

    lanes: tuple[Lane, ...] = field(default_factory=tuple)

    @property
    def end(self) -> float:
        """End of the last span, in seconds."""
        spans = [span for lane in self.lanes for span in (*lane.work, *([lane.transfer] if lane.transfer else []))]
        return max((span.end for span in spans), default=0.0)


def compute_timeline(timings: Mapping[str, StageTimings]) -> Timeline:
    """Returns the lanes of the stages, in the order given, on one axis that begins at the earliest Accepted."""
    origin = min((timing.accepted_unix_ns for timing in timings.values()), default=0)
    return Timeline(tuple(_compute_lane(stage, timing, origin) for stage, timing in timings.items()))


def _compute_lane(stage: str, timing: StageTimings, origin_ns: int) -> Lane:
    offset = timing.accepted_unix_ns - origin_ns

    def seconds(value: int) -> float:
        return (offset + value) / NS_PER_S

    # Each phase ends with an event. A phase is left out if its event did not happen, or happened before the phase began
    # (rows may arrive while the engine runs). If the engine made a single output (one token, or the complete audio),
    # prefill cannot be separated from generation, and is left out.
    single = timing.first_output_ns == timing.last_output_ns
    events = (
        (Phase.INPUT, timing.engine_submitted_ns or timing.input_complete_ns),
        (Phase.QUEUE, timing.engine_scheduled_ns),
        (Phase.PREFILL, 0 if single else timing.first_output_ns),
        (Phase.GENERATE, timing.last_output_ns),
        (Phase.FINISH, timing.finished_ns),
    )
    begun = [(phase, end) for phase, end in events if end > 0]
    borders = [0]
    phases: list[Phase] = []
    for phase, end in begun:
        if end > borders[-1]:
            phases.append(phase)
            borders.append(end)
    work = tuple(
        Span(phase, seconds(start), seconds(end)) for phase, (start, end) in zip(phases, pairwise(borders), strict=True)
    )
    transfer = None
    if timing.transfer_start_ns and timing.transfer_end_ns >= timing.transfer_start_ns:
        transfer = Span(Phase.TRANSFER, seconds(timing.transfer_start_ns), seconds(timing.transfer_end_ns))
    return Lane(
        stage=stage,
        work=work,
        transfer=transfer,
        steps=tuple(seconds(step) for step in timing.step_ns),
        first_audio=seconds(timing.first_audio_ns) if timing.first_audio_ns else None,
    )
