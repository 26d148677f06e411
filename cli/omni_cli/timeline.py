"""Computes a request's timeline: what each stage did and when. plots.py draws it.

Each stage measures nanoseconds since it accepted the request, on its own monotonic clock. The wall-clock times at which
the stages accepted the request place their lanes on one axis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from omni_proto.client import StageTimings

NS_PER_S = 1e9
_US_PER_S: Final = 1e6
_WORK, _TRANSFER = 1, 2
"""Threads of a lane: the phases of the stage's work, and the transfer of tensors downstream."""


class StagePhase(StrEnum):
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

    phase: StagePhase
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
class RequestTimeline:
    """All stages of one request."""

    lanes: tuple[Lane, ...] = field(default_factory=tuple)

    @property
    def end(self) -> float:
        """End of the last span, in seconds."""
        spans = [span for lane in self.lanes for span in (*lane.work, *([lane.transfer] if lane.transfer else []))]
        return max((span.end for span in spans), default=0.0)


def compute_timeline(timings: Mapping[str, StageTimings]) -> RequestTimeline:
    """Returns the lanes of the stages, in the order given, on one axis that begins at the earliest Accepted."""
    origin = min((timing.accepted_unix_ns for timing in timings.values()), default=0)
    return RequestTimeline(tuple(_compute_lane(stage, timing, origin) for stage, timing in timings.items()))


def _compute_lane(stage: str, timing: StageTimings, origin_ns: int) -> Lane:
    offset = timing.accepted_unix_ns - origin_ns

    def seconds(value: int) -> float:
        return (offset + value) / NS_PER_S

    # Each phase ends with an event. A phase is left out if its event did not happen, or happened before the phase began
    # (rows may arrive while the engine runs). If the engine made a single output (one token, or the complete audio),
    # prefill cannot be separated from generation, and is left out.
    single = timing.first_output_ns == timing.last_output_ns
    events = (
        (StagePhase.INPUT, timing.engine_submitted_ns or timing.input_complete_ns),
        (StagePhase.QUEUE, timing.engine_scheduled_ns),
        (StagePhase.PREFILL, 0 if single else timing.first_output_ns),
        (StagePhase.GENERATE, timing.last_output_ns),
        (StagePhase.FINISH, timing.finished_ns),
    )
    begun = [(phase, end) for phase, end in events if end > 0]
    borders = [0]
    phases: list[StagePhase] = []
    for phase, end in begun:
        if end > borders[-1]:
            phases.append(phase)
            borders.append(end)
    work = tuple(
        Span(phase, seconds(start), seconds(end)) for phase, (start, end) in zip(phases, pairwise(borders), strict=True)
    )
    transfer = None
    if timing.transfer_start_ns and timing.transfer_end_ns >= timing.transfer_start_ns:
        transfer = Span(StagePhase.TRANSFER, seconds(timing.transfer_start_ns), seconds(timing.transfer_end_ns))
    return Lane(
        stage=stage,
        work=work,
        transfer=transfer,
        steps=tuple(seconds(step) for step in timing.step_ns),
        first_audio=seconds(timing.first_audio_ns) if timing.first_audio_ns else None,
    )


def render_trace(timeline: RequestTimeline, *, request_id: str) -> str:
    """Returns the text of the file. Each stage is a process; times count from the request's first Accepted."""
    events = [event for number, lane in enumerate(timeline.lanes, 1) for event in _lane_events(number, lane)]
    document = {"displayTimeUnit": "ms", "otherData": {"request_id": request_id}, "traceEvents": events}
    return json.dumps(document, indent=1) + "\n"


def _lane_events(number: int, lane: Lane) -> list[dict[str, Any]]:
    events = [
        _name("process_name", number, 0, lane.stage),
        {"ph": "M", "name": "process_sort_index", "pid": number, "args": {"sort_index": number}},
        _name("thread_name", number, _WORK, "work"),
        *(_complete(number, _WORK, span) for span in lane.work),
    ]
    if lane.transfer is not None:
        events += [_name("thread_name", number, _TRANSFER, "transfer"), _complete(number, _TRANSFER, lane.transfer)]
    events += [_instant(number, "step", at) for at in lane.steps]
    if lane.first_audio is not None:
        events.append(_instant(number, "first audio", lane.first_audio))
    return events


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(process: int, thread: int, span: Span) -> dict[str, Any]:
    times = {"ts": _microseconds(span.start), "dur": _microseconds(span.end - span.start)}
    return {"ph": "X", "name": span.phase.value, "cat": "stage", "pid": process, "tid": thread, **times}


def _instant(process: int, name: str, at: float) -> dict[str, Any]:
    return {"ph": "i", "s": "t", "name": name, "cat": "stage", "pid": process, "tid": _WORK, "ts": _microseconds(at)}


def _microseconds(seconds: float) -> float:
    return round(seconds * _US_PER_S, 3)
