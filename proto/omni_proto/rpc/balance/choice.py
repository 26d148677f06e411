"""Decides which pod of a stage gets the next call. Pure: state in, choice out; no clock, no randomness, no socket.

A pod's load is the calls that this caller has with it, plus the calls of others, which the pod's last report counts.
Of two pods drawn at random the less loaded one gets the call (power of two choices: Mitzenmacher 2001): callers that
know nothing of each other do not all run to the same pod, as they would to the least loaded one of an old report.

Consistent hashing says which pod a key belongs to: each pod has POINTS places on a circle of 64-bit hashes, and a key
belongs to the next place. When a pod comes or goes, only the keys of its own places move. All callers that know the
same pods agree, without talking to each other.

Calls with a key, such as the turns of a conversation, prefer the pod that owns the key, where their prefix is cached.
A first turn draws its owner and a random pod. A later turn goes to its owner unless that has more than its bounded
share of the load; then to the next pod of the ring (consistent hashing with bounded loads: Mirrokni et al. 2018).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from statistics import median
from typing import Final, NamedTuple

from omni_proto.rpc.balance.outliers import FAILURES, MAX_S, SAMPLES, ejection_s, is_slow, may_eject, relative_pace
from omni_proto.rpc.balance.report import LoadReport

POINTS: Final = 64
"""Places of a pod: with 64, the largest share of the circle is about a third above the mean."""


def hash_key(data: bytes) -> int:
    """Returns a 64-bit hash that is the same in every process."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class Ring:
    """The circle of some pods' places."""

    def __init__(self, addresses: Collection[str]) -> None:
        places = sorted(
            (hash_key(f"{address}#{point}".encode()), address) for address in addresses for point in range(POINTS)
        )
        self._hashes = [place for place, _ in places]
        self._addresses = [address for _, address in places]

    def walk(self, key: int) -> Iterator[str]:
        """Yields each pod once, beginning with the owner of the key, in the order in which they take over from it."""
        seen: set[str] = set()
        addresses = self._addresses
        start = bisect_right(self._hashes, key)
        for place in range(start, start + len(addresses)):
            address = addresses[place % len(addresses)]
            if address not in seen:
                seen.add(address)
                yield address


STALE_S: Final = 5.0
"""A report loses its weight over this many seconds."""
BOUND: Final = 1.25
"""A pod that owns keys gets at most this many times the mean load."""
REVIEW_S: Final = 0.25
"""Seconds between two comparisons of the pods' paces."""
_NEW: Final = 0.3
"""Weight of the newest answer in a pod's pace."""


class Reason(StrEnum):
    """Why a pod was chosen. Metrics use these names."""

    BY_NAME = "by_name"
    """No pod is connected, or there is only one: gRPC resolves the name and connects."""
    ONLY = "only"
    TWO_CHOICES = "two_choices"
    STICKY = "sticky"
    """It owns the key of a later turn."""
    OVERFLOW = "overflow"
    """The owner has more than its share."""
    PROBE = "probe"
    """Its ejection is over; this call finds out whether it works again."""
    PANIC = "panic"
    """Every connected pod is ejected."""


class Fault(StrEnum):
    """Why a pod was ejected. Metrics use these names."""

    FAILING = "failing"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Affinity:
    """What a call's pod may have cached."""

    key: int
    """Hash of what its turns have in common; see ring.hash_key."""
    is_later_turn: bool = False


class Choice(NamedTuple):
    """The chosen pod."""

    address: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, as far as it says something about its pod."""

    is_fault: bool = False
    """Whether the pod itself failed."""
    pace_s: float | None = None
    """Seconds for each message of a complete answer; None if it does not count."""
    report: LoadReport | None = None
    """The report of the trailer."""


@dataclass(slots=True, eq=False)
class _Pod:
    address: str
    connected: bool = False
    calls: int = 0
    others: float = 0.0
    reported_at: float = -math.inf
    pace: float = 0.0
    samples: int = 0
    factor: float = 1.0
    failures: int = 0
    ejections: int = 0
    ejected_until: float = -math.inf
    is_out: bool = False
    """Whether it is ejected, or waits for its probe."""
    probing: bool = False

    def load(self, now: float) -> float:
        """Returns the calls in the pod, of this caller and of others."""
        fresh = 1.0 - (now - self.reported_at) / STALE_S
        return self.calls + self.others * fresh if fresh > 0 else self.calls

    def wait(self, now: float) -> float:
        """Returns a measure of how long one more call would take."""
        return (self.load(now) + 1.0) * self.factor


class PodTable:
    """What a caller knows of a stage's pods. Times are seconds of any monotonic clock. Not thread-safe."""

    def __init__(self, on_ejection: Callable[[str, Fault], None] = lambda address, fault: None) -> None:
        """on_ejection: called with the address of an ejected pod and the fault."""
        self._on_ejection = on_ejection
        self._pods: dict[str, _Pod] = {}
        self._ring = Ring(())
        self._live: list[_Pod] = []
        self._out: list[_Pod] = []
        self._reviewed_at = -math.inf
        self._calls = 0
        self._others = 0.0
        """Calls of this caller and, when they were last compared, of others, in all live pods."""

    @property
    def addresses(self) -> frozenset[str]:
        """The known pods."""
        return frozenset(self._pods)

    @property
    def connected(self) -> int:
        """Number of pods that are connected, ejected ones included."""
        return len(self._live) + len(self._out)

    @property
    def ejected(self) -> frozenset[str]:
        """Connected pods that are ejected or wait for their probe."""
        return frozenset(pod.address for pod in self._out)

    def calls(self, address: str) -> int:
        """Returns how many calls this caller has with a pod."""
        return self._pods[address].calls if address in self._pods else 0

    def replace(self, addresses: Iterable[str]) -> None:
        """Set the pods that exist; the others are forgotten."""
        wanted = sorted(set(addresses))
        if len(wanted) == len(self._pods) and all(address in self._pods for address in wanted):
            return
        self._pods = {address: self._pods.get(address) or _Pod(address) for address in wanted}
        self._calls = sum(pod.calls for pod in self._pods.values())
        self._ring = Ring(wanted)
        self._sort()

    def set_connected(self, address: str, connected: bool) -> None:
        """Record whether a pod is connected and says that it serves. A pod that comes back is new."""
        pod = self._pods.get(address)
        if pod is None or pod.connected is connected:
            return
        pod.connected = connected
        if connected:
            pod.samples, pod.failures, pod.factor = 0, 0, 1.0
            pod.others, pod.reported_at = 0.0, -math.inf
        self._sort()

    def choose(
        self, now: float, draws: tuple[float, float], affinity: Affinity | None = None, avoid: Collection[str] = ()
    ) -> Choice | None:
        """Returns the pod for a call, or None if no pod is connected. `begin` must follow.

        draws: two random numbers in [0, 1). avoid: pods that just refused this call; used only if no other is left.
        """
        self._review(now)
        for pod in self._out:
            if pod.ejected_until <= now and not pod.probing and pod.address not in avoid:
                pod.probing = True
                return Choice(pod.address, Reason.PROBE)
        live, reason = self._live, Reason.TWO_CHOICES
        if not live:
            live, reason = self._out, Reason.PANIC
        if avoid:
            live = [pod for pod in live if pod.address not in avoid] or live
        if not live:
            return None
        if len(live) == 1:
            return Choice(live[0].address, Reason.ONLY if reason is Reason.TWO_CHOICES else reason)
        if affinity is not None and affinity.is_later_turn and reason is Reason.TWO_CHOICES:
            return self._choose_by_key(now, live, affinity.key, avoid)
        first = live[int(draws[0] * len(live))]
        if affinity is not None and reason is Reason.TWO_CHOICES:
            first = next(self._owners(affinity.key, avoid), first)
        second = _other(live, first, draws[1])
        return Choice((second if second.wait(now) < first.wait(now) else first).address, reason)

    def begin(self, address: str) -> None:
        """Record that a call to a pod begins."""
        if address in self._pods:
            self._pods[address].calls += 1
            self._calls += 1

    def report(self, address: str, report: LoadReport, now: float) -> None:
        """Record a pod's report."""
        pod = self._pods.get(address)
        if pod is not None:
            pod.others, pod.reported_at = max(0.0, report.requests - pod.calls), now

    def note_pace(self, address: str, pace_s: float) -> None:
        """Record the pace of an answer: seconds for each of its messages so far."""
        pod = self._pods.get(address)
        if pod is not None:
            pod.pace = pace_s if not pod.samples else pod.pace + _NEW * (pace_s - pod.pace)
            pod.samples += 1

    def end(self, address: str, outcome: Outcome, now: float) -> None:
        """Record the end of a call that `begin` recorded."""
        pod = self._pods.get(address)
        if pod is None:
            return
        if pod.calls:
            pod.calls -= 1
            self._calls -= 1
        if outcome.report is not None:
            self.report(address, outcome.report, now)
        if outcome.pace_s is not None:
            self.note_pace(address, outcome.pace_s)
        if pod.probing:
            self._judge_probe(pod, outcome, now)
        elif outcome.is_fault:
            pod.failures += 1
            if pod.failures >= FAILURES:
                self._eject(pod, Fault.FAILING, now)
        elif outcome.pace_s is not None:
            pod.failures = 0
            if now - pod.ejected_until > MAX_S:
                pod.ejections = 0

    def _judge_probe(self, pod: _Pod, outcome: Outcome, now: float) -> None:
        pod.probing = False
        if not pod.is_out:
            return
        if outcome.is_fault:
            self._eject(pod, Fault.FAILING, now, again=True)
        elif outcome.pace_s is not None:
            if is_slow(outcome.pace_s, self._paces(but=pod)):
                self._eject(pod, Fault.SLOW, now, again=True)
            else:
                pod.is_out, pod.failures, pod.samples = False, 0, 0
                self._sort()

    def _eject(self, pod: _Pod, fault: Fault, now: float, *, again: bool = False) -> None:
        if not again and (pod.is_out or not may_eject(len(self._out), self.connected)):
            return
        pod.ejections += 1
        pod.ejected_until = now + ejection_s(pod.ejections)
        pod.is_out, pod.failures = True, 0
        self._on_ejection(pod.address, fault)
        self._sort()

    def _review(self, now: float) -> None:
        """Compare the pods' paces: weigh them, and eject a slow one."""
        if now - self._reviewed_at < REVIEW_S:
            return
        self._reviewed_at = now
        self._others = sum(pod.load(now) - pod.calls for pod in self._live)
        known = [pod for pod in self._live if pod.samples >= SAMPLES]
        if len(known) < 2:
            return
        usual = median(pod.pace for pod in known)
        for pod in known:
            pod.factor = relative_pace(pod.pace, usual)
        slowest = max(known, key=lambda pod: pod.pace)
        if is_slow(slowest.pace, self._paces(but=slowest)):
            self._eject(slowest, Fault.SLOW, now)

    def _paces(self, *, but: _Pod) -> list[float]:
        return [pod.pace for pod in self._live if pod.samples >= SAMPLES and pod is not but]

    def _choose_by_key(self, now: float, live: list[_Pod], key: int, avoid: Collection[str]) -> Choice:
        bound = math.ceil(BOUND * (self._calls + self._others + 1) / len(live))
        reason = Reason.STICKY
        for pod in self._owners(key, avoid):
            if pod.load(now) + 1 <= bound:
                return Choice(pod.address, reason)
            reason = Reason.OVERFLOW
        return Choice(min(live, key=lambda pod: pod.load(now)).address, Reason.OVERFLOW)

    def _owners(self, key: int, avoid: Collection[str]) -> Iterator[_Pod]:
        """Yields the live pods in the order in which they own the key."""
        for address in self._ring.walk(key):
            pod = self._pods[address]
            if pod.connected and not pod.is_out and address not in avoid:
                yield pod

    def _sort(self) -> None:
        connected = [pod for pod in self._pods.values() if pod.connected]
        self._live = [pod for pod in connected if not pod.is_out]
        self._out = [pod for pod in connected if pod.is_out]


def _other(live: list[_Pod], first: _Pod, draw: float) -> _Pod:
    """Returns a pod other than `first`, each with the same chance."""
    drawn = live[int(draw * (len(live) - 1))]
    return live[-1] if drawn is first else drawn
