"""Admission: how many requests, and how many bytes, a stage holds at once.

Bytes are reserved before any chunk is read, by what the request says it may need; so buffers behind it need no
bounds of their own. Nobody waits here: what does not fit is refused with RetryInfo. So priority means a share here, and
order only in the engine's queue: a request whose priority is above 0 finds the stage full while a quarter is still free
for the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omni_stage.errors import ByteBudgetExceededError, RequestTooLargeError, TooManyRequestsError

YIELDING_SHARE = 0.75
"""Share of the stage's requests, bytes and streamed requests that requests of a priority above 0 may fill."""
MEDIA_SHARE = 0.75
"""Share of the stage's bytes that media may fill: text always fits beside them."""
RETRY_AFTER_S = 1.0


class Admitted:
    """A request that was admitted."""

    def __init__(self, admission: Admission, streamed: bool) -> None:
        self._admission = admission
        self._holds_engine = streamed

    def release_engine(self) -> None:
        """The engine is done with the request, though stages below may not be. Idempotent."""
        if self._holds_engine:
            self._holds_engine = False
            self._admission.streamed -= 1


class Admission:
    """Counts requests and bytes of one stage. Used from one event loop."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.max_streamed: int | None = None
        """Most requests whose engine part starts before its input is complete; None where that has no bound."""
        self.requests = 0
        self.streamed = 0
        self.bytes = 0
        self.media_bytes = 0
        """Of `bytes`, those of media."""

    @contextmanager
    def admit(
        self, needed_bytes: int, *, media_bytes: int = 0, streamed: bool = False, priority: int = 0
    ) -> Iterator[Admitted]:
        """Hold one request and needed_bytes while the context is open, and for streamed input the engine's KV.

        `media_bytes`: what media need of needed_bytes; those of all requests together fill MEDIA_SHARE at most.
        A priority above 0 yields: it is admitted only into YIELDING_SHARE of each limit, but at least one request at a
        time, and one of any size into an idle stage.

        Raises RequestTooLargeError (no retry helps), TooManyRequestsError and ByteBudgetExceededError (with RetryInfo).
        """
        if needed_bytes > self.max_bytes:
            raise RequestTooLargeError(
                f"the request may need {needed_bytes} bytes of tensors and media, over the stage's limit of "
                f"{self.max_bytes}; lower max_tokens, shorten the input or raise limits.maxInflightBytes",
                limit=f"{self.max_bytes} bytes",
            )
        most_media = int(self.max_bytes * MEDIA_SHARE)
        if media_bytes > most_media:
            raise RequestTooLargeError(
                f"the request's media may need {media_bytes} bytes, over the stage's limit of {most_media} for media "
                f"(three quarters of limits.maxInflightBytes); send fewer or smaller ones, or raise it",
                field="start.chat",
                limit=f"{most_media} bytes",
            )
        yields = priority > 0
        most_requests = _share(self.max_requests) if yields else self.max_requests
        if self.requests >= most_requests:
            raise TooManyRequestsError(
                f"the stage has {self.requests} requests, its limit (limits.maxConcurrentRequests"
                f"{_YIELDING if yields else ''}); retry later",
                limit=f"{most_requests} requests",
                retry_after_s=RETRY_AFTER_S,
            )
        most_bytes = _share(self.max_bytes) if yields and self.bytes else self.max_bytes
        if needed_bytes and self.bytes + needed_bytes > most_bytes:
            raise ByteBudgetExceededError(
                f"the request may need {needed_bytes} bytes; {self.bytes} of {most_bytes} are taken"
                f"{_YIELDING if yields else ''}; retry later",
                limit=f"{most_bytes} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        if media_bytes and self.media_bytes + media_bytes > most_media:
            raise ByteBudgetExceededError(
                f"the request's media may need {media_bytes} bytes; {self.media_bytes} of {most_media} for media are "
                "taken; retry later",
                limit=f"{most_media} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        if streamed and self.max_streamed is not None:
            most_streamed = _share(self.max_streamed) if yields else self.max_streamed
            if self.streamed >= most_streamed:
                raise TooManyRequestsError(
                    f"the stage has {self.streamed} requests with streamed input, as many as its KV cache holds at "
                    f"full length{_YIELDING if yields else ''}; retry later, or give it more memory, a smaller "
                    "maxModelLen or more replicas",
                    limit=f"{most_streamed} requests with streamed input",
                    retry_after_s=RETRY_AFTER_S,
                )
        admitted = Admitted(self, streamed)
        self.requests += 1
        self.streamed += int(streamed)
        self.bytes += needed_bytes
        self.media_bytes += media_bytes
        try:
            yield admitted
        finally:
            admitted.release_engine()
            self.requests -= 1
            self.bytes -= needed_bytes
            self.media_bytes -= media_bytes


_YIELDING = ", of which a priority above 0 may fill three quarters"


def _share(most: int) -> int:
    """What requests that yield may fill of a limit; at least 1."""
    return max(1, int(most * YIELDING_SHARE))
