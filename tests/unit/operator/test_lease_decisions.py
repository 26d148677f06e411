"""The election as data: who takes the Lease when, by whose clock, and what is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from omni_operator.lease import Sighting, Step, build_lease, decide

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def lease(holder: str | None, version: str = "1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "l", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15} | spec,
    }


@pytest.mark.parametrize(
    ("seen", "since", "now", "step"),
    [
        (None, 0.0, 0.0, Step.CREATE),
        (lease("me"), 0.0, 99.0, Step.RENEW),
        (lease("other"), 0.0, 14.9, Step.WAIT),
        (lease("other"), 0.0, 15.0, Step.TAKE),
        (lease("other"), 10.0, 24.0, Step.WAIT),
        (lease(""), 0.0, 0.0, Step.TAKE),
        (lease(None), 0.0, 0.0, Step.TAKE),
        ({"metadata": {}, "spec": None}, 0.0, 0.0, Step.TAKE),
        (lease("other", leaseDurationSeconds=None), 0.0, 0.0, Step.TAKE),
    ],
    ids=["none", "ours", "held", "silent too long", "renewed since", "given up", "no holder", "no spec", "no duration"],
)
def test_what_a_candidate_does(seen: dict[str, Any] | None, since: float, now: float, step: Step) -> None:
    assert decide(Sighting(seen, since), "me", now) is step


def test_the_clock_starts_when_the_record_changes_not_at_its_own_times() -> None:
    first = Sighting(None, 0.0).updated(lease("other", "1", renewTime="1970-01-01T00:00:00Z"), 100.0)
    assert first.since == 100.0
    assert first.updated(lease("other", "1"), 110.0) is first
    assert first.updated(lease("other", "2"), 110.0).since == 110.0
    assert first.updated(None, 110.0).lease is None


def test_the_first_lease() -> None:
    built = build_lease(None, name="l", namespace="n", identity="me", duration_s=15, now=NOW)
    assert built == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l", "namespace": "n"},
        "spec": {
            "holderIdentity": "me",
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-11-21T12:00:00.000000Z",
            "renewTime": "2026-11-21T12:00:00.000000Z",
            "leaseTransitions": 0,
        },
    }


@pytest.mark.parametrize(
    ("holder", "identity", "acquired", "transitions", "duration"),
    [("me", "me", "T0", 3, 15), ("other", "me", "2026-11-21T12:00:00.000000Z", 4, 15), ("me", "", None, 3, 1)],
    ids=["renewed", "taken over", "given up"],
)
def test_a_lease_that_follows_on_another(
    holder: str, identity: str, acquired: str | None, transitions: int, duration: int
) -> None:
    seen = lease(holder, "7", acquireTime="T0", leaseTransitions=3)
    built = build_lease(seen, name="l", namespace="n", identity=identity, duration_s=15, now=NOW)
    assert built["metadata"]["resourceVersion"] == "7", "a rival's write in between makes this one fail"
    assert built["spec"]["holderIdentity"] == identity
    assert built["spec"]["leaseTransitions"] == transitions
    assert built["spec"]["leaseDurationSeconds"] == duration
    assert acquired is None or built["spec"]["acquireTime"] == acquired
