"""Deadlines: how much time a request has left, and how much of it the next stage gets. Pure; the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from omni_stage.errors import DeadlineExceededError

MIN_HOP_MARGIN_S = 0.05
HOP_MARGIN_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which a request must have ended, in seconds of the monotonic clock."""

    at: float

    @classmethod
    def of_call(cls, remaining_s: float | None, longest_s: float, now: float) -> Deadline:
        """Returns the caller's deadline, but at most timeouts.request (longest_s) from now.

        A drain waits for timeouts.request, so no request may take longer.
        """
        return cls(now + (longest_s if remaining_s is None else min(remaining_s, longest_s)))

    def remaining(self, now: float) -> float:
        """Returns the seconds that are left; negative after the deadline."""
        return self.at - now


def downstream_timeout(remaining_s: float, downstream: str) -> float:
    """Returns the next stage's timeout in seconds: the remaining time minus 50 ms or 2 %, whichever is more.

    The margin lets the next stage's error arrive in time. Raises DeadlineExceededError if nothing would be left.
    """
    timeout = remaining_s - max(MIN_HOP_MARGIN_S, HOP_MARGIN_SHARE * remaining_s)
    if timeout <= 0:
        raise DeadlineExceededError(
            f"the deadline leaves no time to call stage {downstream!r}; retry with a later deadline"
        )
    return timeout
