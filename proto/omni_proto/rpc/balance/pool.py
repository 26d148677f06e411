"""The channels to the pods of a stage: lends one to each call, by the choice of PodTable.

With a channel to each pod, this caller knows which pod serves a call. While no pod is connected, or the stage has one
address, the call gets gRPC's own channel to the name instead (channels.ChannelPool), with its waiting and its errors.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Generic, Protocol

from omni_proto.rpc.balance.addresses import Resolve
from omni_proto.rpc.balance.choice import Affinity, Fault, Outcome, PodTable, Reason
from omni_proto.rpc.balance.outliers import EARLY
from omni_proto.rpc.balance.report import LoadReport
from omni_proto.rpc.channels import RENEW_AFTER_S, Channel, ChannelPool, Loan, Opened

IN_USE_S: Final = 60.0
"""The name is resolved for this many seconds after the last call."""


class Shell(Protocol[Channel]):
    """Waits and watches for a pool, blocking or asyncio: see watch.py."""

    def wake(self, pool: StageChannels[Channel]) -> None:
        """See to it that the pool is refreshed while calls are made. Called at each call; never blocks."""

    def watch(self, pool: StageChannels[Channel], address: str, channel: Channel) -> None:
        """Report to the pool, from now on, whether the channel of a pod is connected."""

    def forget(self, address: str) -> None:
        """Stop watching a channel, which will be closed."""

    def stop(self) -> None:
        """Stop everything."""


class StageChannels(Generic[Channel]):
    """Lends a channel to each call to a stage. Threads may share it. One of asyncio belongs to one event loop."""

    def __init__(
        self,
        open_channel: Callable[[str | None], Channel],
        shell: Shell[Channel],
        resolve: Resolve | None,
        *,
        renew_after_s: float = RENEW_AFTER_S,
        on_choice: Callable[[Reason], None] = lambda reason: None,
        on_ejection: Callable[[Fault], None] = lambda fault: None,
    ) -> None:
        """open_channel: opens a channel to a pod's address, or with None to the name. resolve: None if only gRPC can
        find the pods. on_choice, on_ejection: called for each choice and each ejection, to count them."""
        self._open = open_channel
        self._shell = shell
        self.resolve = resolve
        self._on_choice = on_choice
        self._by_name: ChannelPool[Channel] = ChannelPool(lambda: open_channel(None), renew_after_s=renew_after_s)
        self._lock = threading.Lock()
        self._table = PodTable(lambda address, fault: on_ejection(fault))
        self._pods: dict[str, Opened[Channel]] = {}
        self._retired: list[Opened[Channel]] = []
        self._used_at = time.monotonic()
        self.closed = False
        """Whether the pool is closed: no more calls can be made."""

    @property
    def is_in_use(self) -> bool:
        """Whether calls were made in the last minute, so that new pods matter."""
        return not self.closed and time.monotonic() - self._used_at < IN_USE_S

    @property
    def connected(self) -> int:
        """Number of connected pods; 0 while calls go by name."""
        return self._table.connected

    def take(self, affinity: Affinity | None = None, avoid: Collection[str] = ()) -> Loan[Channel]:
        """Returns a channel for a call; give_back must follow. avoid: pods where this request has failed."""
        now = self._used_at = time.monotonic()
        if self.resolve is not None:
            self._shell.wake(self)
        with self._lock:
            draws = random.random(), random.random()  # noqa: S311
            choice = self._table.choose(now, draws, affinity, avoid) if self._pods else None
            if choice is not None:
                opened = self._pods[choice.address]
                opened.calls += 1
                self._table.begin(choice.address)
        if choice is None:
            self._on_choice(Reason.BY_NAME)
            return self._by_name.take()
        self._on_choice(choice.reason)
        return Loan(opened.channel, opened, pod=choice.address, began=now)

    def note_report(self, loan: Loan[Channel], report: LoadReport | None) -> None:
        """Record the report that came with a call's Accepted."""
        if loan.pod and report is not None:
            with self._lock:
                self._table.report(loan.pod, report, time.monotonic())

    def note_message(self, loan: Loan[Channel]) -> None:
        """Count a message of a call's answer: the time for each message is the pace of its pod."""
        loan.messages += 1
        if loan.messages == EARLY and loan.pod:
            with self._lock:
                self._table.note_pace(loan.pod, (time.monotonic() - loan.began) / (EARLY + 1))

    def give_back(self, loan: Loan[Channel]) -> Channel | None:
        """Release a channel after its call has ended. Idempotent.

        Returns a channel that no call uses any more, which the caller must close, or None.
        """
        if not loan.pod:
            return self._by_name.give_back(loan)
        with self._lock:
            if loan.over:
                return None
            loan.over = True
            now = time.monotonic()
            pace = (now - loan.began) / (loan.messages + 1) if loan.complete else None
            self._table.end(loan.pod, Outcome(loan.is_fault, pace, loan.report), now)
            loan.opened.calls -= 1
            if loan.opened.calls or loan.opened not in self._retired:
                return None
            self._retired.remove(loan.opened)
            return loan.opened.channel

    def update(self, addresses: Collection[str]) -> list[Channel]:
        """Set the pods that exist now, and open channels to new ones. Returns channels that the caller must close."""
        with self._lock:
            if self.closed or (not self._pods and len(addresses) < 2):
                return []
            gone = [address for address in self._pods if address not in addresses]
            retired = [self._pods.pop(address) for address in gone]
            new = [address for address in addresses if address not in self._pods]
            opened = {address: Opened(self._open(address), time.monotonic()) for address in new}
            self._pods |= opened
            self._table.replace(self._pods)
            unused = [old.channel for old in retired if not old.calls]
            self._retired += [old for old in retired if old.calls]
        for address in gone:
            self._shell.forget(address)
        for address, one in opened.items():
            self._shell.watch(self, address, one.channel)
        if self._table.connected and (by_name := self._by_name.drop_unused()) is not None:
            unused.append(by_name)
        return unused

    def set_connected(self, address: str, connected: bool) -> None:
        """Record whether a pod's channel is connected and the pod says that it serves."""
        with self._lock:
            self._table.set_connected(address, connected)

    def close(self) -> list[Channel]:
        """Close the pool. Returns all its channels, which the caller must close."""
        self._shell.stop()
        with self._lock:
            self.closed = True
            retired, self._retired = self._retired, []
            pods, self._pods = list(self._pods.values()), {}
        return [*self._by_name.close(), *(opened.channel for opened in (*retired, *pods))]
