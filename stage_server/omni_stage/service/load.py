"""What a stage reports of its load, to those who choose among its pods: omni_proto/rpc/balance/report.py."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry

from omni_proto.rpc.balance.report import LoadReport
from omni_stage.engine.protocol import StageEngine
from omni_stage.service.guard.admission import Admission

KV_GAUGE: Final = "vllm:kv_cache_usage_perc"
"""vLLM's gauge of the KV cache's used share. It is set after each step."""
KV_EVERY_S: Final = 0.2
"""The gauge is read at most this often."""
WINDOW_S: Final = 30.0
"""Rates are means over about this time: older calls count exponentially less."""


@runtime_checkable
class KnowsKvShare(Protocol):
    """An engine that knows the used share of its KV cache itself."""

    @property
    def kv_share(self) -> float: ...


@runtime_checkable
class KnowsRequestLimit(Protocol):
    """An engine that works on a limited number of requests at once."""

    @property
    def max_requests(self) -> int: ...


def find_request_limit(engine: StageEngine, admitted: int) -> int:
    """Returns how many requests the engine works on at once, at most those that the stage admits."""
    return min(admitted, engine.max_requests) if isinstance(engine, KnowsRequestLimit) else admitted


class LoadMeter:
    """Counts a stage's requests. Belongs to one event loop."""

    def __init__(
        self,
        admission: Admission,
        kv_share: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """kv_share: returns the used share of the KV cache, 0 to 1. clock: seconds, monotonic."""
        self._admission = admission
        self._kv_share = kv_share
        self._clock = clock
        self._waiting = 0
        self._running = 0
        self.waited_s = 0.0
        """Sum over requests of their time in the engine's queue, in seconds, up to the last change."""
        self.ran_s = 0.0
        """Sum over requests of their time in the engine after the queue, in seconds, up to the last change."""
        self._counted_at = clock()
        self._ended = 0.0
        self._failed = 0.0
        self._busy_s = 0.0
        """Completed calls, failed ones, and the time in which the stage had requests, all as sums that decay."""
        self._window_s = 0.0
        """Time over which the sums were taken; decays too."""
        self._at = clock()

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Count a request as waiting until the yielded function is called, which may be more than once, and then as
        running in the engine until the block ends."""
        self._move(waiting=1)
        waits = True

        def begun() -> None:
            nonlocal waits
            if waits:
                waits = False
                self._move(waiting=-1, running=1)

        try:
            yield begun
        finally:
            self._move(waiting=-1) if waits else self._move(running=-1)

    def count_seconds(self) -> tuple[float, float]:
        """Returns the sums over all requests so far of the seconds that they waited for the engine, and ran in it.

        May be called in any thread: it changes nothing.
        """
        passed = max(0.0, self._clock() - self._counted_at)
        return self.waited_s + passed * self._waiting, self.ran_s + passed * self._running

    def _move(self, waiting: int = 0, running: int = 0) -> None:
        self.waited_s, self.ran_s = self.count_seconds()
        self._counted_at = self._clock()
        self._waiting += waiting
        self._running += running

    def begins(self) -> None:
        """Call this before a request is admitted: until now the stage may have been idle."""
        self._advance()

    def ended(self, *, failed: bool) -> None:
        """Count a call that ended. failed: by the stage's own fault."""
        self._advance(was_busy=True)
        self._ended += 1
        self._failed += failed

    def report(self) -> LoadReport:
        """Returns the load now."""
        self._advance()
        requests = self._admission.requests
        waiting = min(self._waiting, requests)
        kv_share = min(1.0, max(0.0, self._kv_share()))
        each_s = self._busy_s / self._ended if self._ended > 0 else 0.0
        window = max(self._window_s, 1.0)
        return LoadReport(
            running=requests - waiting,
            waiting=waiting,
            queued_s=waiting * each_s,
            free_kv=1.0 - kv_share,
            # At least one request, because gRPC ignores a report of no utilization.
            utilization=max(kv_share, max(1, requests) / max(1, self._admission.max_requests)),
            per_second=self._ended / window,
            errors_per_second=self._failed / window,
        )

    def _advance(self, *, was_busy: bool | None = None) -> None:
        """Let the sums decay up to now."""
        now = self._clock()
        passed, self._at = now - self._at, now
        share = math.exp(-passed / WINDOW_S)
        busy = bool(self._admission.requests) if was_busy is None else was_busy
        self._ended *= share
        self._failed *= share
        self._window_s = self._window_s * share + passed
        self._busy_s = self._busy_s * share + (passed if busy else 0.0)


def kv_reader(
    engine: StageEngine, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
) -> Callable[[], float]:
    """Returns a function that returns the used share of the engine's KV cache: its own figure, or vLLM's gauge;
    0 without either."""
    if isinstance(engine, KnowsKvShare):
        return lambda: engine.kv_share
    gauge = registry.restricted_registry([KV_GAUGE])
    last = (-math.inf, 0.0)

    def read() -> float:
        nonlocal last
        if clock() - last[0] >= KV_EVERY_S:
            shares = [sample.value for metric in gauge.collect() for sample in metric.samples]
            last = (clock(), max(shares, default=0.0))
        return last[1]

    return read
