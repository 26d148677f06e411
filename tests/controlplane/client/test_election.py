"""Leader election by a Lease on a real API server: never two leaders, and a leader without a network stops in time."""

from __future__ import annotations

import asyncio

import pytest

from omni_kube.api.client import ApiClient
from omni_kube.errors import NotLeaderError
from omni_kube.lease import LEASE, Leadership, LeaseTimes
from support.controlplane.server.api import Api
from support.controlplane.server.fault_proxy import FaultProxy
from support.processes.polling import until

pytestmark = pytest.mark.controlplane

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
    """A busy machine may delay a renewal until the lease expires. Then another candidate may lead sooner than here."""
    candidates = [Candidate(client, space, f"c{number}") for number in range(3)]
    ended: list[Candidate] = []

    def find_leader() -> Candidate | None:
        leaders = [candidate for candidate in (*candidates, *ended) if candidate.leads]
        assert len(leaders) <= 1
        return leaders[0] if leaders and leaders[0] in candidates else None

    while candidates:
        await until(find_leader)
        leader = find_leader()
        if leader is None:
            continue
        await leader.stop()  # without releasing the lease
        candidates.remove(leader)
        ended.append(leader)
    await until(lambda: not any(candidate.leads for candidate in ended))
    for candidate in ended:
        with pytest.raises(NotLeaderError, match="does not hold the lease"):
            candidate.leadership.ensure()
    lease = await client.get(LEASE, space.namespace, "election")
    assert lease is not None
    assert lease["spec"]["leaseTransitions"] >= 2


async def test_a_lease_that_is_given_up_is_free(client: ApiClient, space: Api) -> None:
    """Another candidate can acquire a released Lease. Releasing a Lease twice is no error."""
    first = Candidate(client, space, "first")
    await until(lambda: first.leads)
    await first.stop()
    await first.leadership.release()
    await first.leadership.release()
    assert not first.told[-1]
    assert not first.leadership.won.is_set()
    second = Candidate(client, space, "second")
    await until(lambda: second.leads)
    await second.stop()


async def test_a_lease_that_is_taken_or_deleted(client: ApiClient, space: Api) -> None:
    """A leader stops when another holder takes the Lease, and leads again after the Lease is deleted."""
    candidate = Candidate(client, space, "me")
    await until(lambda: candidate.leads)
    space.patch("Lease", "election", {"spec": {"holderIdentity": "other", "leaseDurationSeconds": 3600}})
    await until(lambda: not candidate.leads and not candidate.told[-1])
    space.delete("Lease", "election")
    await until(lambda: candidate.leads)
    assert space.get("Lease", "election")["spec"]["holderIdentity"] == "me"
    await candidate.stop()


async def test_a_leader_that_is_cut_off_stops_in_time(faulty_client: ApiClient, faulty: FaultProxy, space: Api) -> None:
    """Without the API server a leader stops by its own clock. It leads again once the API server is back."""
    candidate = Candidate(faulty_client, space, "me")
    await until(lambda: candidate.leads)
    faulty.go_away()
    await until(lambda: not candidate.leads and not candidate.told[-1])
    faulty.come_back()
    await until(lambda: candidate.leads)
    await candidate.stop()
    faulty.go_away()
    await candidate.leadership.release()  # no error, although the API server is away
