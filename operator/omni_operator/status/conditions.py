"""Builds the conditions of the status. No other module does. Their content is decided in verdicts.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from omni_operator.reasons import Reason

MAX_MESSAGE_BYTES: Final = 1024
READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
SCALING: Final = "Scaling"
"""Written only if a stage has scaling."""
OBJECTIVES_MET: Final = "ObjectivesMet"
"""Written only if the spec has objectives, once there are answers to judge."""
ROUTE_ACCEPTED: Final = "RouteAccepted"
"""Written only if the spec has a route."""
SPEC_UNDERSTOOD: Final = "SpecUnderstood"
"""Written only while it is False."""
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
"""These two are written only while they are True (judge_kstatus)."""
CONDITION_TYPES: Final = (
    READY,
    PROGRESSING,
    DEGRADED,
    SCALING,
    OBJECTIVES_MET,
    ROUTE_ACCEPTED,
    SPEC_UNDERSTOOD,
    RECONCILING,
    STALLED,
)
ALWAYS_WRITTEN: Final = (READY, PROGRESSING, DEGRADED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The current content of a condition."""

    holds: bool
    reason: Reason
    message: str


def set_conditions(
    previous: Iterable[Mapping[str, Any]], verdicts: Mapping[str, Verdict], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Returns the conditions to write: those that have a verdict. The transition time changes only when a condition's
    status changes."""
    before = {condition.get("type"): condition for condition in previous}
    conditions = []
    for kind in CONDITION_TYPES:
        verdict = verdicts.get(kind)
        if verdict is None:
            continue
        status = "True" if verdict.holds else "False"
        old = before.get(kind, {})
        since = old.get("lastTransitionTime") if old.get("status") == status else None
        conditions.append(
            {
                "type": kind,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since or format_time(now),
                "reason": str(verdict.reason),
                "message": bound(verdict.message),
            }
        )
    return conditions


def bound(text: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Returns the text, cut to at most limit bytes of UTF-8."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[: limit - 3].decode(errors="ignore") + "..."


def format_time(now: datetime) -> str:
    """Returns a timestamp in the API's format, in whole seconds."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")
