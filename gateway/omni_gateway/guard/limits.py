"""Limits of each key in this replica: requests per minute, concurrent requests, seconds of audio per minute.

Each limit is divided evenly: a replica grants limit / replicas, but at least one request. While the number of replicas
changes, all replicas together may exceed the limit or fall short of it by about one replica's share.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from omni_gateway.errors import RateLimitError
from omni_gateway.rights import ApiKey
from omni_proto.runtime.limits import TokenBucket


@dataclass(slots=True)
class _Use:
    requests: TokenBucket | None = None
    audio: TokenBucket | None = None
    running: int = 0
    headers: dict[str, str] = field(default_factory=dict)


class KeyLimiter:
    """Counts what each key uses in this replica. Use from one thread."""

    def __init__(self, replicas: Callable[[], int], clock: Callable[[], float] = time.monotonic) -> None:
        """replicas: returns the number of the gateway's ready replicas."""
        self._replicas = replicas
        self._clock = clock
        self._uses: dict[str, _Use] = {}

    def enter(self, key: ApiKey) -> dict[str, str]:
        """Count a request that begins. Returns its x-ratelimit-* headers; call `leave` once when it has ended.

        Raises RateLimitError with these headers, and then does not count the request.
        """
        use = self._uses.setdefault(key.name, _Use())
        now, replicas = self._clock(), max(1, self._replicas())
        limits = key.limits
        headers: dict[str, str] = {}
        if limits.requests_per_minute is not None:
            requests_share = max(1.0, limits.requests_per_minute / replicas)
            use.requests = use.requests or TokenBucket(requests_share, now)
            use.requests.refill(requests_share / 60, requests_share, now)
            headers |= _headers("requests", requests_share, use.requests)
        if limits.audio_seconds_per_minute is not None:
            audio_share = limits.audio_seconds_per_minute / replicas
            use.audio = use.audio or TokenBucket(audio_share, now)
            use.audio.refill(audio_share / 60, audio_share, now)
            headers |= _headers("audio-seconds", audio_share, use.audio)
            if use.audio.level <= 0:
                raise RateLimitError(
                    f"The key {key.name!r} has used its {limits.audio_seconds_per_minute} s of audio a minute.",
                    retry_after_s=use.audio.wait_s(min(1.0, audio_share), audio_share / 60),
                    headers=headers,
                )
        if limits.concurrent_requests is not None:
            at_once = max(1, limits.concurrent_requests // replicas)
            if use.running >= at_once:
                raise RateLimitError(
                    f"The key {key.name!r} has {use.running} requests at once, its limit in this replica.",
                    retry_after_s=1,
                    headers=headers,
                )
        if limits.requests_per_minute is not None and use.requests is not None:
            if not use.requests.take():
                raise RateLimitError(
                    f"The key {key.name!r} has used its {limits.requests_per_minute} requests a minute.",
                    retry_after_s=use.requests.wait_s(1, requests_share / 60),
                    headers=headers,
                )
            headers |= _headers("requests", requests_share, use.requests)
        use.running += 1
        return headers

    def leave(self, key: ApiKey, audio_seconds: float) -> None:
        """Count the end of a request, with the seconds of audio that it returned."""
        use = self._uses[key.name]
        use.running -= 1
        if use.audio is not None:
            use.audio.level -= audio_seconds


def _headers(what: str, share: float, bucket: TokenBucket) -> dict[str, str]:
    """Returns the x-ratelimit-* headers, with OpenAI's names. Reset is the time until the bucket is full again."""
    return {
        f"x-ratelimit-limit-{what}": str(math.floor(share)),
        f"x-ratelimit-remaining-{what}": str(max(0, math.floor(bucket.level))),
        f"x-ratelimit-reset-{what}": f"{bucket.wait_s(share, share / 60):.3f}s",
    }
