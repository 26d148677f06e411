"""A token bucket for rate limits. Pure; the caller passes in the time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TokenBucket:
    """Refills evenly up to its capacity. The level may fall below zero if an amount is known only after its use.

    Rate and capacity are arguments, because some limits change while they are in use.
    """

    level: float
    filled_at: float
    """Time of the last refill, in seconds of any monotonic clock."""

    def refill(self, per_second: float, capacity: float, now: float) -> None:
        """Add what has accrued since the last refill."""
        self.level = min(capacity, self.level + (now - self.filled_at) * per_second)
        self.filled_at = now

    def take(self, amount: float = 1.0) -> bool:
        """Take the amount if it is there. Returns whether it was."""
        if self.level < amount:
            return False
        self.level -= amount
        return True

    def wait_s(self, amount: float, per_second: float) -> float:
        """Returns the seconds until that amount is available; 0 if it is now."""
        return max(0.0, (amount - self.level) / per_second)
