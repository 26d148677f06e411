"""Admission: how many requests, and how many bytes, a stage holds at once.

Bytes are reserved before any chunk is read, by what the request says it may need; so buffers behind it need no
bounds of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omni_stage.errors import ByteBudgetExceededError, RequestTooLargeError, TooManyRequestsError

BUDGET_SHARE = 0.25
"""Share of the memory limit that tensors and media may hold."""
RETRY_AFTER_S = 1.0
_FALLBACK_LIMIT = 2 << 30
_CGROUP_FILES = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_MEMINFO = Path("/proc/meminfo")


def parse_cgroup_limit(text: str) -> int | None:
    """Bytes of a cgroup limit file; None for "max" and for the huge numbers that mean no limit."""
    stripped = text.strip()
    if not stripped.isdigit():
        return None
    value = int(stripped)
    return value if 0 < value < 1 << 50 else None


def parse_memory_total(meminfo: str) -> int | None:
    """Bytes of MemTotal in the text of /proc/meminfo; None if it is not there."""
    for line in meminfo.splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if name == "MemTotal" and fields and fields[0].isdigit():
            return int(fields[0]) * 1024
    return None


def default_byte_budget() -> int:
    """25 % of the cgroup's memory limit, or of the machine's memory if there is none, in bytes."""
    for path in _CGROUP_FILES:
        if path.is_file() and (limit := parse_cgroup_limit(path.read_text(encoding="ascii"))):
            return int(limit * BUDGET_SHARE)
    total = parse_memory_total(_MEMINFO.read_text(encoding="ascii")) if _MEMINFO.is_file() else None
    return int((total or _FALLBACK_LIMIT) * BUDGET_SHARE)


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

    @contextmanager
    def admit(self, needed_bytes: int, *, streamed: bool = False) -> Iterator[Admitted]:
        """Hold one request and needed_bytes while the context is open, and for streamed input the engine's KV.

        Raises RequestTooLargeError (no retry helps), TooManyRequestsError and ByteBudgetExceededError (with RetryInfo).
        """
        if needed_bytes > self.max_bytes:
            raise RequestTooLargeError(
                f"the request may need {needed_bytes} bytes of tensors and media, over the stage's limit of "
                f"{self.max_bytes}; lower max_tokens, shorten the input or raise limits.maxInflightBytes",
                limit=f"{self.max_bytes} bytes",
            )
        if self.requests >= self.max_requests:
            raise TooManyRequestsError(
                f"the stage has {self.requests} requests, its limit (limits.maxConcurrentRequests); retry later",
                limit=f"{self.max_requests} requests",
                retry_after_s=RETRY_AFTER_S,
            )
        if self.bytes + needed_bytes > self.max_bytes:
            raise ByteBudgetExceededError(
                f"the request may need {needed_bytes} bytes; {self.bytes} of {self.max_bytes} are taken; retry later",
                limit=f"{self.max_bytes} bytes",
                retry_after_s=RETRY_AFTER_S,
            )
        if streamed and self.max_streamed is not None and self.streamed >= self.max_streamed:
            raise TooManyRequestsError(
                f"the stage has {self.streamed} requests with streamed input, as many as its KV cache holds at full "
                "length; retry later, or give it more memory, a smaller maxModelLen or more replicas",
                limit=f"{self.max_streamed} requests with streamed input",
                retry_after_s=RETRY_AFTER_S,
            )
        admitted = Admitted(self, streamed)
        self.requests += 1
        self.streamed += int(streamed)
        self.bytes += needed_bytes
        try:
            yield admitted
        finally:
            admitted.release_engine()
            self.requests -= 1
            self.bytes -= needed_bytes
