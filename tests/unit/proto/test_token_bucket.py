"""The token bucket that several rate limits use."""

from __future__ import annotations

import pytest

from omni_proto.runtime.limits import TokenBucket


def test_it_refills_evenly_and_no_higher_than_its_capacity() -> None:
    bucket = TokenBucket(0.0, 100.0)
    bucket.refill(2.0, 10.0, 101.5)
    assert bucket.level == pytest.approx(3.0)
    bucket.refill(2.0, 10.0, 200.0)
    assert bucket.level == 10.0


def test_a_capacity_that_shrinks_takes_the_surplus() -> None:
    bucket = TokenBucket(10.0, 0.0)
    bucket.refill(1.0, 4.0, 0.0)
    assert bucket.level == 4.0


@pytest.mark.parametrize(("level", "taken", "left"), [(1.0, True, 0.0), (0.99, False, 0.99), (-3.0, False, -3.0)])
def test_only_a_whole_token_can_be_taken(level: float, taken: bool, left: float) -> None:
    bucket = TokenBucket(level, 0.0)
    assert bucket.take() is taken
    assert bucket.level == left


@pytest.mark.parametrize(("level", "wait_s"), [(5.0, 0.0), (1.0, 0.0), (0.0, 2.0), (-1.0, 4.0)])
def test_the_wait_is_until_the_amount_is_there(level: float, wait_s: float) -> None:
    assert TokenBucket(level, 0.0).wait_s(1.0, per_second=0.5) == wait_s
