"""Events: what a change of conditions is worth telling. One a transition, none while nothing changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from omni_operator.conditions import DEGRADED, PROGRESSING, READY
from omni_operator.reasons import Reason

_ASKED_FOR: Final = frozenset({Reason.SUSPENDED, Reason.SCALED_TO_ZERO, Reason.WAITING_FOR_OLD_REVISION})
"""Reasons of Ready=False that somebody chose."""


@dataclass(frozen=True, slots=True)
class EventData:
    """An Event about the pipeline, to be written by the shell."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def compute_events(previous: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[EventData]:
    """The Events of the step from one status to the next, the worst first."""
    before, after = _by_type(previous), _by_type(new)
    events: list[EventData] = []
    for kind in (DEGRADED, READY, PROGRESSING):
        event = _transition(kind, before.get(kind, {}), after[kind])
        # Ready and Degraded often turn for one reason: told once.
        if event is not None and event.reason not in {told.reason for told in events}:
            events.append(event)
    return events


def _transition(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> EventData | None:
    if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
        return None
    holds, reason, message = after["status"] == "True", str(after["reason"]), str(after["message"])
    flips_to_good = before.get("status") not in (None, after["status"])
    if kind == DEGRADED:
        if holds:
            return EventData("Warning", reason, message)
        return EventData("Normal", reason, "recovered: nothing fails any more") if flips_to_good else None
    if kind == READY:
        if holds:
            return EventData("Normal", reason, message)
        if reason == Reason.STAGES_NOT_READY and before.get("status") != "True":
            return None  # it starts: Progressing tells that
        return EventData("Normal" if reason in _ASKED_FOR else "Warning", reason, message)
    return EventData("Warning" if reason == Reason.ROLLOUT_NEEDS_CAPACITY else "Normal", reason, message)


def _by_type(status: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in (status or {}).get("conditions", ())}
