"""Decides which changes of conditions are reported as Events: one for each transition, none while nothing changes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from omni_operator.reasons import Reason
from omni_operator.status.conditions import (
    DEGRADED,
    OBJECTIVES_MET,
    PROGRESSING,
    READY,
    ROUTE_ACCEPTED,
    SCALING,
    SPEC_UNDERSTOOD,
)
from omni_proto.runtime.limits import TokenBucket

EQUAL_PAUSE_S: Final = 600.0
"""Shortest time between two equal Events of one pipeline. Events in between are added to the count of the next one."""
MAX_EVENTS: Final = 20
"""Maximum number of Events for one pipeline, both in a burst and per hour."""

_ASKED_FOR: Final = frozenset(
    {
        Reason.SUSPENDED,
        Reason.SCALED_TO_ZERO,
        Reason.WAKING,
        Reason.WAITING_FOR_OLD_REVISION,
        Reason.TERMINATING,
    }
)
"""Reasons of Ready=False that follow from the user's spec."""


@dataclass(frozen=True, slots=True)
class EventData:
    """An Event about the pipeline, to be written by publish.py."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    count: int = 1
    """Number of equal Events that it represents."""


class EventGate:
    """Decides which Events are written: equal ones are combined, and the number per pipeline and hour is limited.

    Level-triggered conditions can flap. The status only shows the latest state, but Events would fill the API server.
    """

    def __init__(self, pause_s: float = EQUAL_PAUSE_S, max_events: int = MAX_EVENTS, limit: int = 10_000) -> None:
        self._pause_s, self._max_events, self._limit = pause_s, max_events, limit
        self._equal: OrderedDict[tuple[str, str, str, str], tuple[float, int]] = OrderedDict()
        self._budgets: OrderedDict[str, TokenBucket] = OrderedDict()

    def admit(self, uid: str, event: EventData, now_s: float) -> EventData | None:
        """Returns the Event to write, with its count; None if it is only counted. now_s: time of a monotonic clock."""
        key = (uid, event.type, event.reason, event.message)
        since, suppressed = self._equal.get(key, (float("-inf"), 0))
        budget = self._budgets.get(uid) or TokenBucket(self._max_events, now_s)
        budget.refill(self._max_events / 3600.0, self._max_events, now_s)
        if now_s - since < self._pause_s or not budget.take():
            self._note(key, since, suppressed + 1)
            return None
        self._note(key, now_s, 0)
        self._budgets[uid] = budget
        self._budgets.move_to_end(uid)
        while len(self._budgets) > self._limit:
            self._budgets.popitem(last=False)
        return replace(event, count=suppressed + 1)

    def _note(self, key: tuple[str, str, str, str], since: float, suppressed: int) -> None:
        self._equal[key] = (since, suppressed)
        self._equal.move_to_end(key)
        while len(self._equal) > self._limit:
            self._equal.popitem(last=False)


def compute_events(previous: Mapping[str, Any] | None, new: Mapping[str, Any]) -> list[EventData]:
    """Returns the Events for the change from one status to the next, the most severe first."""
    before, after = _by_type(previous), _by_type(new)
    events: list[EventData] = []
    short = any(stage.get("readyReplicas", 0) < stage.get("replicas", 0) for stage in new.get("stages", ()))
    for kind in (DEGRADED, READY, PROGRESSING, SCALING, OBJECTIVES_MET, ROUTE_ACCEPTED, SPEC_UNDERSTOOD):
        event = _transition(kind, before.get(kind, {}), after[kind], short) if kind in after else None
        # Ready and Degraded often change for the same reason, which is reported once.
        if event is not None and event.reason not in {other.reason for other in events}:
            events.append(event)
    return events


def _transition(kind: str, before: Mapping[str, Any], after: Mapping[str, Any], short: bool) -> EventData | None:
    """Returns the Event for the change of one condition. short: whether replicas are missing."""
    if (before.get("status"), before.get("reason")) == (after["status"], after["reason"]):
        return None
    holds, reason, message = after["status"] == "True", str(after["reason"]), str(after["message"])
    flips_to_good = before.get("status") not in (None, after["status"])
    if kind == DEGRADED:
        if holds:
            return EventData("Warning", reason, message)
        # After an edit, replicas may be missing without a failure until they are late. Do not call that recovered.
        text = "no failure is known any more; replicas are still missing" if short else "recovered: nothing is failing"
        return EventData("Normal", reason, text) if flips_to_good else None
    if kind == READY:
        if holds:
            return EventData("Normal", reason, message)
        if reason in (Reason.STAGES_NOT_READY, Reason.ENTRY_NOT_READY) and before.get("status") != "True":
            return None  # the pipeline is starting, which Progressing reports
        return EventData("Normal" if reason in _ASKED_FOR else "Warning", reason, message)
    if kind == PROGRESSING and reason == Reason.ENTRY_NOT_READY:
        return None  # the last moments of a start, or Ready reports it
    if kind in (SCALING, OBJECTIVES_MET, ROUTE_ACCEPTED):
        if holds:
            return EventData("Normal", reason, message) if flips_to_good else None
        return EventData(
            "Normal" if reason in (Reason.LOAD_UNKNOWN, Reason.ROUTE_PENDING) else "Warning", reason, message
        )
    is_warning = kind == SPEC_UNDERSTOOD or reason == Reason.ROLLOUT_NEEDS_CAPACITY
    return EventData("Warning" if is_warning else "Normal", reason, message)


def _by_type(status: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in (status or {}).get("conditions", ())}
