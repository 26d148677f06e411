"""Writes a request's timeline in a format that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is Google's "Trace Event Format" (2016): complete events ("X") with times in microseconds, instant events
("i"), and metadata ("M") that names processes and threads.
"""

from __future__ import annotations

import json
from typing import Any, Final

from omni_cli.views.timeline import Lane, Span, Timeline

_US_PER_S: Final = 1e6
_WORK, _TRANSFER = 1, 2
"""Threads of a lane: the phases of the stage's work, and the transfer of tensors downstream."""


def render_trace(timeline: Timeline, *, request_id: str) -> str:
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
