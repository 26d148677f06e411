"""Rate limits of API keys: which requests are admitted, how long others must wait, and how replicas share a limit."""

from __future__ import annotations

import pytest

from omni_gateway.errors import RateLimitError, answer_error
from omni_gateway.guard.keys import KeyLimiter
from omni_gateway.rights import ApiKey, KeyLimits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def make_key(**limits: int) -> ApiKey:
    return ApiKey(name="alice", sha256="0" * 64, limits=KeyLimits(**limits))


def test_without_limits_everything_enters() -> None:
    limiter, key = KeyLimiter(lambda: 1), make_key()
    assert [limiter.enter(key) for _ in range(1000)] == [{}] * 1000


def test_requests_are_replenished_evenly() -> None:
    """At 6 requests a minute, a client that has used them up may send the next one after 10 s."""
    clock = Clock()
    limiter, key = KeyLimiter(lambda: 1, clock), make_key(requests_per_minute=6)
    left = [limiter.enter(key)["x-ratelimit-remaining-requests"] for _ in range(6)]
    assert left == ["5", "4", "3", "2", "1", "0"]
    with pytest.raises(RateLimitError) as caught:
        limiter.enter(key)
    assert caught.value.retry_after_s == pytest.approx(10)
    clock.now += 10.01
    limiter.enter(key)
    with pytest.raises(RateLimitError):
        limiter.enter(key)


def test_concurrent_requests_are_counted_until_they_end() -> None:
    limiter, key = KeyLimiter(lambda: 1), make_key(concurrent_requests=2)
    limiter.enter(key)
    limiter.enter(key)
    with pytest.raises(RateLimitError):
        limiter.enter(key)
    limiter.leave(key, 0)
    limiter.enter(key)


def test_audio_is_charged_when_a_request_ends_and_may_be_overdrawn() -> None:
    """Audio counts when its request ends, so it may exceed the limit. The next request must then wait."""
    clock = Clock()
    limiter, key = KeyLimiter(lambda: 1, clock), make_key(audio_seconds_per_minute=60)
    assert limiter.enter(key)["x-ratelimit-remaining-audio-seconds"] == "60"
    limiter.leave(key, 90)
    with pytest.raises(RateLimitError) as caught:
        limiter.enter(key)
    assert caught.value.retry_after_s == pytest.approx(31)
    clock.now += 31
    limiter.enter(key)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_replicas_together_grant_the_limit_but_for_one_share(replicas: int) -> None:
    """All replicas together admit at most the limit, and at least the limit less one replica's share."""
    clock, key = Clock(), make_key(requests_per_minute=30)
    limiters = [KeyLimiter(lambda: replicas, clock) for _ in range(replicas)]
    granted = 0
    for limiter in limiters:
        while True:
            try:
                limiter.enter(key)
            except RateLimitError:
                break
            granted += 1
    assert 30 - 30 / replicas <= granted <= 30


def test_a_new_replica_takes_its_share_immediately() -> None:
    """When the number of replicas grows, a replica's share shrinks immediately."""
    clock, key, replicas = Clock(), make_key(requests_per_minute=30), [1]
    limiter = KeyLimiter(lambda: replicas[0], clock)
    limiter.enter(key)
    replicas[0] = 3
    assert limiter.enter(key)["x-ratelimit-remaining-requests"] == "9"


@pytest.mark.parametrize(("wait_s", "says"), [(None, "1"), (0.2, "1"), (2.0, "2"), (2.01, "3"), (31.49, "32")])
def test_retry_after_is_never_too_early(wait_s: float | None, says: str) -> None:
    assert answer_error(RateLimitError("full", retry_after_s=wait_s)).headers["retry-after"] == says


def test_a_refusal_has_the_headers_of_all_limits() -> None:
    limiter, key = KeyLimiter(lambda: 1), make_key(requests_per_minute=1, audio_seconds_per_minute=60)
    limiter.enter(key)
    with pytest.raises(RateLimitError) as caught:
        limiter.enter(key)
    headers = answer_error(caught.value).headers
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-remaining-audio-seconds"] == "60"
    limiter.leave(key, 90)
    with pytest.raises(RateLimitError) as caught:
        limiter.enter(key)
    assert {"x-ratelimit-limit-requests", "x-ratelimit-reset-audio-seconds"} <= set(answer_error(caught.value).headers)
