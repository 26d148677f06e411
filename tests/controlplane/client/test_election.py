"""Leader election by a Lease on a real API server: never two leaders, and a leader without a network stops in time."""

from __future__ import annotations

import asyncio

import pytest

from omni_kube.api.client import ApiClient
from omni_kube.errors import (
    NotLeaderError,
)
from omni_kube.lease import LEASE, Leadership, LeaseTimes
from support.controlplane.server.api import Api
from support.controlplane.server.api_clients import until
from support.controlplane.server.fault_proxy import FaultProxy

pytestmark = pytest.mark.controlplane

# An API server that shares its cores with other tests may take half a second for a renewal.
QUICK = LeaseTimes(duration_s=2, renew_deadline_s=1.5, retry_s=0.1)


class Candidate:
    """A candidate in the election, and the leadership changes that it was notified of."""

    def __init__(self, client: ApiClient, space: Api, identity: str) -> None:
        self.told: list[bool] = []
        self.leadership = Leadership(
            client.transport,
            name="election",
            namespace=space.namespace,
            identity=identity,
            on_change=self.told.append,
            times=QUICK,
        )
        self.task = asyncio.ensure_future(self.leadership.run())

    @property
    def leads(self) -> bool:
        return self.leadership.is_leader

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_never_two_leaders(client: ApiClient, space: Api) -> None:
    candidates = [Candidate(client, space, f"c{number}") for number in range(3)]
    await until(lambda: any(candidate.leads for candidate in candidates), "one leads")
    for _ in range(3):
        (leader,) = (candidate for candidate in candidates if candidate.leads)
        leader.leadership.ensure()
        await leader.stop()  # without releasing the lease
        candidates.remove(leader)
        await until(lambda: not leader.leads, "its lease expires")  # noqa: B023
        with pytest.raises(NotLeaderError, match="does not hold the lease"):
            leader.leadership.ensure()
        if not candidates:
            break
        while not any(candidate.leads for candidate in candidates):
            await asyncio.sleep(0.02)
            assert sum(candidate.leads for candidate in (*candidates, leader)) <= 1
        assert sum(candidate.leads for candidate in candidates) == 1
    lease = await client.get(LEASE, space.namespace, "election")
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] == 2


async def test_a_lease_that_is_given_up_is_free(client: ApiClient, space: Api) -> None:
    """Another candidate can acquire a released Lease. Releasing a Lease twice is no error."""
    first = Candidate(client, space, "first")
    await until(lambda: first.leads, "leads")
    await first.stop()
    await first.leadership.release()
    await first.leadership.release()
    assert first.told == [True, False]
    assert not first.leadership.won.is_set()
    second = Candidate(client, space, "second")
    await until(lambda: second.leads, "leads")
    await second.stop()


async def test_a_lease_that_is_taken_or_deleted(client: ApiClient, space: Api) -> None:
    """A leader stops when another holder takes the Lease, and leads again after the Lease is deleted."""
    candidate = Candidate(client, space, "me")
    await until(lambda: candidate.leads, "leads")
    space.patch("Lease", "election", {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 3600}})
    await until(lambda: not candidate.leads, "lost")
    await until(lambda: candidate.told == [True, False], "notified")
    space.delete("Lease", "election")
    await until(lambda: candidate.leads, "leads again")
    assert space.get("Lease", "election")["spec"]["holderIdentity"] == "me"
    await candidate.stop()


async def test_a_leader_that_is_cut_off_stops_in_time(faulty_client: ApiClient, faulty: FaultProxy, space: Api) -> None:
    """Without the API server a leader stops by its own clock. It leads again once the API server is back."""
    candidate = Candidate(faulty_client, space, "me")
    await until(lambda: candidate.leads, "leads")
    faulty.go_away()
    await until(lambda: candidate.told == [True, False], "leadership ends by its own clock")
    faulty.come_back()
    await until(lambda: candidate.leads, "leads again")
    await candidate.stop()
    faulty.go_away()
    await candidate.leadership.release()  # no error, although the API server is away
