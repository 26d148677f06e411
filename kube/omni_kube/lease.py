"""Leader election by a coordination Lease: the process that holds the Lease may write; the others only watch.

The protocol is the same as in client-go. A candidate takes over the Lease when its resource version has not changed for
the duration in its spec, *by the candidate's own clock*, so clocks need not agree. A leader whose renewals fail stops
sending writes renew_deadline_s after the last successful renewal, before another process may take over. Writes in
flight at that moment time out before the takeover too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from omni_kube.api.transport import Transport
from omni_kube.errors import ApiError, ConflictError, NotFoundError, NotLeaderError
from omni_kube.objects import Manifest, ObjectKind

LEASE: Final = ObjectKind("Lease", "coordination.k8s.io/v1", "leases")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """Times of the election, in seconds; client-go's defaults."""

    duration_s: int = 15
    """How long the Lease must stay unchanged before another process may take the Lease over."""
    renew_deadline_s: float = 10.0
    """How long a leader may send writes after its last renewal."""
    retry_s: float = 2.0
    """Pause between two attempts, for the leader and for candidates; a quarter of it while attempts fail. A random part
    of up to 20 % is added."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """The Lease as it was last read, and when this version of it was first seen."""

    lease: Manifest | None
    since: float
    """By the local monotonic clock, in seconds."""

    def updated(self, lease: Manifest | None, now: float) -> Sighting:
        """Returns the sighting after another read; `since` changes only with the resource version."""
        if self.lease is not None and lease is not None and _version(self.lease) == _version(lease):
            return self
        return Sighting(lease, now)


def may_hold(sighting: Sighting, identity: str, now: float) -> bool:
    """Returns whether a process may write itself into the Lease.

    It may if the Lease does not exist, has no holder, is held by this identity, or has expired.
    """
    if sighting.lease is None:
        return True
    spec = sighting.lease.get("spec") or {}
    holder = spec.get("holderIdentity") or ""
    lapsed = now >= sighting.since + float(spec.get("leaseDurationSeconds") or 0)
    return holder in ("", identity) or lapsed


def build_lease(
    lease: Manifest | None, *, name: str, namespace: str, identity: str, duration_s: int, now: datetime
) -> Manifest:
    """Returns the next version of the Lease, held by identity; an empty identity releases it.

    lease: the version that was last read, None if there is none.
    """
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
    """Runs the election. `ensure` is called before every write."""

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

        The election's calls use the transport directly, without ApiClient's rate limit and leadership check, because
        that check depends on the election.
        """
        self._transport = transport
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._on_change = on_change
        self._times = times or LeaseTimes()
        self._valid_until = float("-inf")
        self._announced = False
        self._current = False  # whether the sighting is this process's own last write
        self._sighting = Sighting(None, 0.0)
        self.won = asyncio.Event()
        """Set while leading."""

    @property
    def is_leader(self) -> bool:
        """Whether this process may write now. It is computed from the clock, so it is right even if `run` is stuck."""
        return asyncio.get_running_loop().time() < self._valid_until

    def ensure(self) -> float:
        """Returns how many seconds a write that is sent now may take. Raises NotLeaderError.

        The write must end before another process may take over: before the Lease's duration has passed since the last
        renewal.
        """
        left_s = self._valid_until - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise NotLeaderError(f"{self._identity} does not hold the lease {self._namespace}/{self._name}")
        return left_s + self._times.duration_s - self._times.renew_deadline_s

    async def run(self) -> None:
        """Take part in the election until cancelled."""
        failures = 0
        while True:
            try:
                # A call that hangs must leave time for another attempt before leadership expires.
                async with asyncio.timeout(self._times.renew_deadline_s / 2):
                    await self._step()
                failures = 0
            except (ApiError, TimeoutError) as error:
                if not isinstance(error, ConflictError):  # another process was faster: the next read shows which
                    failures += 1
                    level = logging.WARNING if failures == 1 else logging.DEBUG
                    _log.log(level, "lease %s/%s: %s", self._namespace, self._name, error or "no answer in time")
                self._current = False
            self._announce()
            await self._pause(self._times.retry_s if self._current or not failures else self._times.retry_s / 4)

    async def release(self) -> None:
        """Release the Lease if it is held, so that a successor need not wait for it to expire."""
        if not self.is_leader:
            return
        self._valid_until = float("-inf")
        self._announce()
        try:
            await self._write(self._build(""))
        except ApiError as error:
            _log.warning("lease %s/%s could not be released: %s", self._namespace, self._name, error)

    async def _pause(self, pause_s: float) -> None:
        """Wait until the next attempt. If leadership expires meanwhile, announce its loss."""
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
        # Measured before the request, because the renewal may take effect as soon as it is sent.
        asked_at = loop.time()
        lease = await self._write(self._build(self._identity))
        self._sighting = Sighting(lease, loop.time())
        self._current = True
        # If leadership expired meanwhile, announce the loss before leadership is announced as won again. Writes were
        # refused in between, and only on_change(True) causes them to be repeated.
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
