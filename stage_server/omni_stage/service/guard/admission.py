"""Admission: limits how many requests a stage runs at a time, and how many bytes they may hold.

Bytes are reserved before any chunk is read, by the request's own upper bounds, so later buffers need no bounds of their
own. No request waits here: one that does not fit now is refused with RetryInfo.

A request with a priority above 0 is refused once three quarters of a limit are in use; the last quarter is for other
requests. Otherwise priority has no effect here: it decides the order of requests in the engine's queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from omni_stage.errors import ByteBudgetExceededError, RequestTooLargeError, TooManyRequestsError
from omni_stage.vllm_adapter.scheduling.sessions import YIELDING_SHARE

MEDIA_SHARE = 0.75
"""Share of the stage's bytes that media may fill; the rest stays free for text."""
RETRY_AFTER_S = 1.0


class Admission:
    """Counts requests and bytes of one stage. Used from one event loop."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.requests = 0
        self.bytes = 0
        self.media_bytes = 0
        """The part of `bytes` that media hold."""

    @contextmanager
    def admit(self, needed_bytes: int, *, media_bytes: int = 0, priority: int = 0) -> Iterator[None]:
        """Reserve one request and needed_bytes while the context is open.

        `media_bytes`: the part of needed_bytes that media need. The media of all requests may reserve at most
        MEDIA_SHARE of the stage's bytes. A request with a priority above 0 is admitted only if all requests, including
        this one, then fill at most YIELDING_SHARE of each limit. While no other request has reserved bytes, it may
        itself reserve up to max_bytes.

        Raises RequestTooLargeError (no retry helps), TooManyRequestsError and ByteBudgetExceededError (with RetryInfo).
        """
        if needed_bytes > self.max_bytes:
            raise RequestTooLargeError(
                f"the request may need {needed_bytes} bytes of tensors and media, over the stage's limit of "
                f"{self.max_bytes}; lower max_tokens, shorten the input or raise limits.maxInflightBytes",
                limit=f"{self.max_bytes} bytes",
            )
        media_limit = int(self.max_bytes * MEDIA_SHARE)
        if media_bytes > media_limit:
            raise RequestTooLargeError(
                f"the request's media may need {media_bytes} bytes, over the stage's limit of {media_limit} for media "
                f"(three quarters of limits.maxInflightBytes); send fewer or smaller ones, or raise that limit",
                field="start.chat",
                limit=f"{media_limit} bytes",
            )
        yields = priority > 0
        request_limit = _share(self.max_requests) if yields else self.max_requests
        if self.requests >= request_limit:
            raise TooManyRequestsError(
                f"the stage has {self.requests} requests, its limit (limits.maxConcurrentRequests"
                f"{_YIELDING if yields else ''}); retry later",
                limit=f"{request_limit} requests",
                retry_after_s=RETRY_AFTER_S,
            )
        byte_limit = _share(self.max_bytes) if yields and self.bytes else self.max_bytes
        if needed_bytes and self.bytes + needed_bytes > byte_limit:
            raise ByteBudgetExceededError(
                f"the request may need {needed_bytes} bytes; {self.bytes} of {byte_limit} are in use"
                f"{_YIELDING if yields else ''}; retry later",
                limit=f"{byte_limit} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        if media_bytes and self.media_bytes + media_bytes > media_limit:
            raise ByteBudgetExceededError(
                f"the request's media may need {media_bytes} bytes; {self.media_bytes} of {media_limit} for media are "
                "taken; retry later",
                limit=f"{media_limit} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        self.requests += 1
        self.bytes += needed_bytes
        self.media_bytes += media_bytes
        try:
            yield
        finally:
            self.requests -= 1
            self.bytes -= needed_bytes
            self.media_bytes -= media_bytes


_YIELDING = ", of which a priority above 0 may fill three quarters"


def _share(maximum: int) -> int:
    """Returns the maximum use of a limit, including that of a request with a priority above 0; at least 1."""
    return max(1, int(maximum * YIELDING_SHARE))
