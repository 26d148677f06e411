"""Deadlines: what is left of a request, and what the next stage gets of it. Pure; the clock is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from omni_stage.errors import DeadlineExceededError

MIN_HOP_MARGIN_S = 0.05
HOP_MARGIN_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Deadline:
    """The end of a request, in seconds of the monotonic clock."""

    at: float

    @classmethod
    def of_call(cls, remaining_s: float | None, longest_s: float, now: float) -> Deadline:
        """The caller's deadline, but no later than timeouts.request (longest_s) from now: a drain waits no longer."""
        return cls(now + (longest_s if remaining_s is None else min(remaining_s, longest_s)))

    def remaining(self, now: float) -> float:
        """Seconds left; negative once it passed."""
        return self.at - now


def downstream_timeout(remaining_s: float, downstream: str) -> float:
    """Seconds that the next stage gets: what is left minus max(50 ms, 2 %), so that its error arrives in time.

    Raises DeadlineExceededError if nothing would be left.
    """
    timeout = remaining_s - max(MIN_HOP_MARGIN_S, HOP_MARGIN_SHARE * remaining_s)
    if timeout <= 0:
        raise DeadlineExceededError(f"the deadline leaves no time to call stage {downstream!r}; ask with a later one")
    return timeout
