"""Time is read from the API server's clock, because the local clock may be an hour off in either direction."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from omni_kube.api.timing import ServerClock
from omni_operator.state.live import is_lost

ENDS = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
POD: dict[str, Any] = {"metadata": {"name": "p", "deletionTimestamp": ENDS.isoformat()}}
HEADER = "Sun, 22 Nov 2026 11:59:00 GMT"


def test_a_local_clock_that_is_ahead_drains_no_pod() -> None:
    """Whether a pod counts as lost does not depend on the local clock."""
    clock = ServerClock()
    clock.update(HEADER, 1000.0)
    assert clock.now(1000.0) == ENDS - timedelta(seconds=60)
    assert not is_lost(POD, clock.now(1119.0)), "the local clock does not count"
    assert is_lost(POD, clock.now(1121.0))


def test_of_answers_with_one_date_the_first_counts() -> None:
    """Of responses with the same Date, the first one sets the clock."""
    clock = ServerClock()
    clock.update(HEADER, 1000.0)
    clock.update(HEADER, 1000.9)
    assert clock.now(1001.0) == ENDS - timedelta(seconds=59)
    clock.update("Sun, 22 Nov 2026 11:59:05 GMT", 1001.0)
    assert clock.now(1001.0) == ENDS - timedelta(seconds=55), "the server's clock was changed"


@pytest.mark.parametrize("header", ["", "yesterday", "Sun, 99 Nov 2026 11:59:00 GMT"])
def test_what_is_no_date_is_passed_over(header: str) -> None:
    clock = ServerClock()
    clock.update(header, 5.0)
    assert abs(clock.now(5.0) - datetime.now(UTC)) < timedelta(minutes=1)
