"""The gateway replicas that share the keys' limits are counted as the addresses of a DNS name, resolved repeatedly."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable

import pytest

from omni_gateway.cluster.replicas import ReadyReplicas, count_addresses
from omni_gateway.errors import RateLimitError
from omni_gateway.guard.keys import KeyLimiter
from omni_gateway.rights import ApiKey, KeyLimits
from omni_gateway.telemetry import GatewayMetrics
from support.processes.polling import PATIENCE_S

KEY = ApiKey(name="alice", sha256="0" * 64, limits=KeyLimits(requests_per_minute=30))


class Names:
    """A stand-in for DNS, whose answer can change."""

    def __init__(self, answer: Counter[int] | OSError) -> None:
        self.answer = answer
        self.asked = 0

    async def __call__(self, name: str) -> Counter[int]:
        self.asked += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    async def asked_again(self) -> None:
        """Waits until the answer to a lookup that began after this call has been used."""
        last = self.asked
        await until(lambda: self.asked > last + 1)


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true in time"
        await asyncio.sleep(0.005)


async def reached(replicas: ReadyReplicas, number: int) -> None:
    await until(lambda: replicas.count() == number)


def granted(limiter: KeyLimiter) -> int:
    """Returns how many requests in a row the limiter admits."""
    for number in range(1000):
        try:
            limiter.enter(KEY)
        except RateLimitError:
            return number
    raise AssertionError("no limit")


async def test_the_replica_count_follows_dns(caplog: pytest.LogCaptureFixture) -> None:
    """Until the first answer, the assumed number of replicas holds. A failed lookup keeps the last number.

    An answer without addresses counts as one replica. A pod with an IPv4 and an IPv6 address counts once.
    """
    names, metrics = Names(Counter({socket.AF_INET: 3})), GatewayMetrics()
    replicas = ReadyReplicas("gateway-replicas.system.svc", 8, names, every_s=0.01)
    assert replicas.count() == 8
    with caplog.at_level(logging.INFO):
        async with replicas.run(metrics):
            await reached(replicas, 3)
            names.answer = socket.gaierror("no such name")
            await names.asked_again()
            assert replicas.count() == 3
            names.answer = Counter()
            await reached(replicas, 1)
            names.answer = Counter({socket.AF_INET: 2, socket.AF_INET6: 2})
            await reached(replicas, 2)
            await names.asked_again()
    assert metrics.registry.get_sample_value("omni_gateway_counted_replicas") == 2
    failures = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(failures) == 1
    asked = names.asked
    await asyncio.sleep(0.05)
    assert names.asked == asked


async def test_a_new_replica_exceeds_the_limit_by_at_most_one_share() -> None:
    """While a new third replica is known only to itself, the three together admit at most a third over the limit."""
    names = Names(Counter({socket.AF_INET: 2}))
    counts = [ReadyReplicas("name", 1, names, every_s=0.01) for _ in range(2)]
    for count in counts:
        async with count.run(GatewayMetrics()):
            await reached(count, 2)
    fixed = time.monotonic()
    limiters = [KeyLimiter(count.count, lambda: fixed) for count in counts]
    limiters.append(KeyLimiter(lambda: 3, lambda: fixed))
    share = 30 / 3
    assert 30 <= sum(map(granted, limiters)) <= 30 + share


async def test_a_name_s_addresses_are_counted_by_family() -> None:
    found = await count_addresses("localhost")
    assert found
    assert set(found) <= {socket.AF_INET, socket.AF_INET6}
    assert (await count_addresses("127.0.0.1")) == Counter({socket.AF_INET: 1})
    with pytest.raises(OSError, match=r".+"):
        await count_addresses("name.invalid")
