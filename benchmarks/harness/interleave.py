"""Runs the sides of a case in turn and compares them round by round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def take_turns(sides: Sequence[_T], number: int) -> list[_T]:
    """Returns the sides in the order of round `number`. The side that is first changes from round to round."""
    turn = number % len(sides)
    return [*sides[turn:], *sides[:turn]]


def time_rounds(
    sides: Mapping[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Returns for each side the seconds of every round.

    Every round runs each side once, in an order that rotates. A first round warms up and is not counted.
    """
    names = list(sides)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in take_turns(names, number):
            start = clock()
            sides[name]()
            if number:
                seconds[name].append(clock() - start)
    return seconds


def median_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Returns the median of the rounds' ratios. A disturbance affects both sides of its round, so it cancels out."""
    return statistics.median(above / below for above, below in zip(numerators, denominators, strict=True))


def quantile(values: Sequence[float], share: float) -> float:
    """Returns the smallest of the values for which at least `share` of all values are equal or smaller.

    Raises ValueError if there are no values or `share` is not in (0, 1].
    """
    if not values or not 0 < share <= 1:
        raise ValueError("a quantile needs values and a share in (0, 1]")
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
