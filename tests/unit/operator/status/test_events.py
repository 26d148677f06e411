"""Which Events each change of a status publishes."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.reasons import Reason
from omni_operator.state.pod_causes import _RANKS
from omni_operator.status.events import EventData, compute_events


def status_of(ready: str, progressing: str, degraded: str) -> dict[str, Any]:
    texts = {"Ready": ready, "Progressing": progressing, "Degraded": degraded}
    conditions = [
        {"type": kind, "status": text.split()[0], "reason": text.split()[1], "message": f"about {kind}"}
        for kind, text in texts.items()
    ]
    return {"conditions": conditions}


GOOD = status_of("True AllStagesReady", "False RolloutComplete", "False AsExpected")
STARTS = status_of("False StagesNotReady", "True Starting", "False AsExpected")
BROKEN = status_of("False ImagePullBackOff", "True Starting", "True ImagePullBackOff")
EVENTS: dict[str, tuple[dict[str, Any] | None, dict[str, Any], list[str]]] = {
    "created": (None, STARTS, ["Normal Starting"]),
    "created broken": (None, BROKEN, ["Warning ImagePullBackOff", "Normal Starting"]),
    "ready": (STARTS, GOOD, ["Normal AllStagesReady", "Normal RolloutComplete"]),
    "breaks": (STARTS, BROKEN, ["Warning ImagePullBackOff"]),
    "nothing changes": (BROKEN, BROKEN, []),
    "another cause": (BROKEN, status_of("False OOMKilled", "True Starting", "True OOMKilled"), ["Warning OOMKilled"]),
    "recovers": (BROKEN, GOOD, ["Normal AsExpected", "Normal AllStagesReady", "Normal RolloutComplete"]),
    "needs capacity": (
        GOOD,
        status_of("True AllStagesReady", "True RolloutNeedsCapacity", "False AsExpected"),
        ["Warning RolloutNeedsCapacity"],
    ),
    "waits for room": (
        STARTS,
        status_of("False Unschedulable", "True Starting", "False AsExpected"),
        ["Warning Unschedulable"],
    ),
    "suspended": (
        GOOD,
        status_of("False Suspended", "True Suspending", "False AsExpected"),
        ["Normal Suspended", "Normal Suspending"],
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    before, after, expected = EVENTS[name]
    events = compute_events(before, after)
    assert [f"{event.type} {event.reason}" for event in events] == expected
    assert all(isinstance(event, EventData) and event.message for event in events)


@pytest.mark.parametrize(("ready", "words"), [(1, "replicas are still missing"), (2, "recovered")])
def test_only_what_has_all_replicas_has_recovered(ready: int, words: str) -> None:
    after = STARTS | {"stages": [{"name": "llm", "replicas": 2, "readyReplicas": ready}]}
    (event,) = compute_events(BROKEN, after)
    assert event.reason == Reason.AS_EXPECTED
    assert words in event.message


class TestReasons:
    """Every Reason that is the cause of a pod's failure has a rank."""

    def test_every_cause_of_pods_has_a_rank(self) -> None:
        pods = [reason for reason in Reason if list(Reason).index(reason) >= list(Reason).index(Reason.UNSCHEDULABLE)]
        assert set(_RANKS) == set(pods)
        assert len(_RANKS) == len(set(_RANKS))

    def test_reasons_fit_the_api(self) -> None:
        assert all(reason[0].isupper() and reason.isalnum() for reason in Reason)
