"""One writer at a time: the process that holds a coordination Lease may write; the others watch and wait.

The protocol is client-go's: a candidate takes the Lease over when its record has not changed for the record's
duration *by the candidate's own clock*, so clocks need not agree. A leader whose renewals fail stops writing
RENEW_DEADLINE_S after the last one that succeeded, which is before anyone may take over; writes that are under way then
are given up before that.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from omni_kube.errors import ApiError, ConflictError, NotFoundError, NotLeaderError
from omni_kube.objects import Manifest, ObjectKind
from omni_kube.transport import Transport

LEASE: Final = ObjectKind("Lease", "coordination.k8s.io/v1", "leases")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of the election, in seconds; client-go's defaults."""

    duration_s: int = 15
    """For how long others leave a record alone that does not change."""
    renew_deadline_s: float = 10.0
    """For how long a leader writes after its last renewal."""
    retry_s: float = 2.0
    """Pause between two attempts, of leader and candidates alike."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A record of the Lease and when it was first seen so."""

    lease: Manifest | None
    since: float
    """Own clock, in seconds."""

    def updated(self, lease: Manifest | None, now: float) -> Sighting:
        """Returns the sighting after another read; since moves only when the record has changed."""
        if self.lease is not None and lease is not None and _version(self.lease) == _version(lease):
            return self
        return Sighting(lease, now)


def may_hold(sighting: Sighting, identity: str, now: float) -> bool:
    """Returns whether a candidate or leader may write itself into the Lease: it has none, ours, or a silent holder."""
    if sighting.lease is None:
        return True
    spec = sighting.lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    lapsed = now >= sighting.since + float(spec.get("leaseDurationSeconds") or 0)
    return holder in ("", identity) or lapsed


def build_lease(
    lease: Manifest | None, *, name: str, namespace: str, identity: str, duration_s: int, now: datetime
) -> Manifest:
    """Returns the Lease held by identity ("" gives it up), following on the one seen last."""
    old: dict[str, Any] = (lease or {}).get("spec") or {}
    time = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    moved = (old.get("holderIdentity") or "") != identity
    spec: dict[str, Any] = {
        "holderIdentity": identity,
        "leaseDurationSeconds": duration_s if identity else 1,
        "acquireTime": time if moved else old.get("acquireTime", time),
        "renewTime": time,
        "leaseTransitions": int(old.get("leaseTransitions") or 0) + int(moved and bool(identity) and lease is not None),
    }
    metadata = {"name": name, "namespace": namespace}
    if lease is not None:
        metadata["resourceVersion"] = _version(lease)
    return {"apiVersion": LEASE.api_version, "kind": LEASE.kind, "metadata": metadata, "spec": spec}


class Leadership:
    """Runs the election; `ensure` is the gate in front of every write."""

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        namespace: str,
        identity: str,
        on_change: Callable[[bool], None],
        times: LeaseTimes | None = None,
    ) -> None:
        """on_change is called when leadership is won (True) and lost (False).

        Calls go past ApiClient's rate limit and its gate, which depends on them.
        """
        self._transport = transport
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._on_change = on_change
        self._times = times or LeaseTimes()
        self._valid_until = float("-inf")
        self._announced = False
        self._current = False  # whether the sighting is our own last write
        self._sighting = Sighting(None, 0.0)
        self.won = asyncio.Event()
        """Set while leading."""

    @property
    def is_leader(self) -> bool:
        """Returns whether this process may write now: by the clock, even if the loop below is stuck."""
        return asyncio.get_running_loop().time() < self._valid_until

    def ensure(self) -> float:
        """Returns for how many seconds a write that is sent now may be under way. Raises NotLeaderError.

        It must have ended when somebody else may take over: the record's duration after the last renewal.
        """
        left_s = self._valid_until - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise NotLeaderError(f"{self._identity} does not hold the lease {self._namespace}/{self._name}")
        return left_s + self._times.duration_s - self._times.renew_deadline_s

    async def run(self) -> None:
        """Take part until cancelled."""
        failures = 0
        while True:
            try:
                # A call that hangs must leave time for another one before leadership runs out.
                async with asyncio.timeout(self._times.renew_deadline_s / 2):
                    await self._step()
                failures = 0
            except (ApiError, TimeoutError) as error:
                if not isinstance(error, ConflictError):  # someone else was faster: the next read shows who
                    failures += 1
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    _log.log(level, "lease %s/%s: %s", self._namespace, self._name, error or "no answer in time")
                self._current = False
            self._announce()
            await self._pause(self._times.retry_s if self._current or not failures else self._times.retry_s / 4)

    async def release(self) -> None:
        """Give the Lease up, if held, so that a successor need not wait for it to expire."""
        if not self.is_leader:
            return
        self._valid_until = float("-inf")
        self._announce()
        try:
            await self._write(self._build(""))
        except ApiError as error:
            _log.warning("lease %s/%s could not be given up: %s", self._namespace, self._name, error)

    async def _pause(self, pause_s: float) -> None:
        """Until the next attempt; leadership that runs out meanwhile is announced."""
        loop = asyncio.get_running_loop()
        until = loop.time() + pause_s * random.uniform(1.0, 1.2)  # noqa: S311
        if self._announced and self._valid_until < until:
            await asyncio.sleep(max(0.0, self._valid_until - loop.time()))
            self._announce()
        await asyncio.sleep(max(0.0, until - loop.time()))

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._current:
            self._sighting = self._sighting.updated(await self._read(), loop.time())
        if not may_hold(self._sighting, self._identity, loop.time()):
            return
        # From before the request: it may take effect the moment it is sent.
        asked_at = loop.time()
        lease = await self._write(self._build(self._identity))
        self._sighting = Sighting(lease, loop.time())
        self._current = True
        # What ran out meanwhile was lost, however soon it is won again: writes were refused, and only a notice
        # brings them back.
        self._announce()
        self._valid_until = asked_at + self._times.renew_deadline_s

    def _build(self, identity: str) -> Manifest:
        return build_lease(
            self._sighting.lease,
            name=self._name,
            namespace=self._namespace,
            identity=identity,
            duration_s=self._times.duration_s,
            now=datetime.now(UTC),
        )

    async def _read(self) -> Manifest | None:
        try:
            return await self._transport.call("get", "GET", LEASE.path(self._namespace, self._name))
        except NotFoundError:
            return None

    async def _write(self, lease: Manifest) -> Manifest:
        if "resourceVersion" in lease["metadata"]:
            path = LEASE.path(self._namespace, self._name)
            return await self._transport.call("update", "PUT", path, body=lease)
        return await self._transport.call("create", "POST", LEASE.path(self._namespace), body=lease)

    def _announce(self) -> None:
        leader = self.is_leader
        if leader == self._announced:
            return
        self._announced = leader
        if leader:
            self.won.set()
        else:
            self.won.clear()
        _log.info("lease %s/%s %s", self._namespace, self._name, "held" if leader else "no longer held")
        self._on_change(leader)


def _version(lease: Manifest) -> str:
    return str(lease["metadata"].get("resourceVersion", ""))
