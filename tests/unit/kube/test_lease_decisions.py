"""Decisions of the leader election: who may take the Lease and when, by whose clock, and what is written."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from kubernetes.aio.client import Configuration

from omni_kube.api.transport import ApiConnection, Transport
from omni_kube.errors import NotLeaderError
from omni_kube.lease import Leadership, LeaseTimes, Sighting, build_lease, may_hold
from omni_operator.process.metrics import Metrics

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def lease(holder: str | None, version: str = "1", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "l", "resourceVersion": version},
        "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15} | spec,
    }


@pytest.mark.parametrize(
    ("seen", "since", "now", "writes"),
    [
        (None, 0.0, 0.0, True),
        (lease("me"), 0.0, 99.0, True),
        (lease("other"), 0.0, 14.9, False),
        (lease("other"), 0.0, 15.0, True),
        (lease("other"), 10.0, 24.0, False),
        (lease(""), 0.0, 0.0, True),
        (lease(None), 0.0, 0.0, True),
        ({"metadata": {}, "spec": None}, 0.0, 0.0, True),
        (lease("other", leaseDurationSeconds=None), 0.0, 0.0, True),
    ],
    ids=["none", "ours", "held", "silent too long", "renewed since", "given up", "no holder", "no spec", "no duration"],
)
def test_when_a_candidate_writes_itself_into_the_lease(
    seen: dict[str, Any] | None, since: float, now: float, writes: bool
) -> None:
    assert may_hold(Sighting(seen, since), "me", now) is writes


def test_the_clock_starts_when_the_record_changes_not_at_its_own_times() -> None:
    """The lease duration counts from when the candidate first sees a version of the Lease, not from its renewTime."""
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
    assert built["metadata"]["resourceVersion"] == "7", "a write by another candidate in between makes this one fail"
    assert built["spec"]["holderIdentity"] == identity
    assert built["spec"]["leaseTransitions"] == transitions
    assert built["spec"]["leaseDurationSeconds"] == duration
    assert acquired is None or built["spec"]["acquireTime"] == acquired


async def test_a_write_may_take_until_somebody_else_may_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    """ensure() returns the seconds until another process may lead.

    In an earlier version a call could take 15 s, although another process could lead after 5 s.
    """
    transport = Transport(ApiConnection(Configuration(), "test"), Metrics())
    times = LeaseTimes(duration_s=15, renew_deadline_s=10.0)
    leadership = Leadership(transport, name="l", namespace="n", identity="me", on_change=lambda _: None, times=times)
    with pytest.raises(NotLeaderError):
        leadership.ensure()
    now = asyncio.get_running_loop().time()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now)
    # The allowed time and the time since the renewal always add up to the record's duration.
    for since_renewal_s, allowed_s in ((0.0, 15.0), (9.0, 6.0), (9.9, 5.1)):
        leadership._valid_until = now - since_renewal_s + times.renew_deadline_s
        assert leadership.ensure() == pytest.approx(allowed_s)
    leadership._valid_until = now
    with pytest.raises(NotLeaderError):
        leadership.ensure()
