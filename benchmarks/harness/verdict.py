"""Decides whether a run's ratios keep their bounds, and whether they are worse than in the last committed result. Pure.

Tables are not judged, because seconds and GB/s depend on the machine. The ratio of two sides that took turns on one
machine is valid for other machines too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure to be judged. Higher is better, unless it has `at_most` or `lower_is_better`."""

    name: str
    value: float
    at_least: float | None = None
    """Lower bound of the value."""
    at_most: float | None = None
    """Upper bound of the value; lower is then better."""
    goal: bool = False
    """Whether the bound is only a goal: it is shown, but a run that misses it does not fail."""
    tolerance: float = 0.15
    """How much worse than in the last result the value may be, relative to the last value."""
    lower_is_better: bool = False
    """Whether a lower value is better. Set it for a figure that has no bound; `at_most` implies it."""

    @property
    def met(self) -> bool | None:
        """Whether the value keeps its bound; None if it has no bound. NaN keeps no bound."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.at_most is None else self.value <= self.at_most


@dataclass(frozen=True, slots=True)
class Verdict:
    """A ratio, and its value in the last result."""

    ratio: Ratio
    last: float | None
    """The value in the last result; None if the last result did not have it."""

    @property
    def to_last(self) -> float | None:
        """This value divided by the last one; None without a positive last value."""
        return self.ratio.value / self.last if self.last is not None and self.last > 0 else None

    @property
    def is_broken(self) -> bool:
        """Whether the ratio misses a bound that is not only a goal."""
        return self.ratio.met is False and not self.ratio.goal

    @property
    def has_regressed(self) -> bool:
        """Whether the value is worse than the last one by more than its tolerance."""
        if self.to_last is None:
            return False
        if math.isnan(self.to_last):
            return True
        if self.ratio.at_most is not None or self.ratio.lower_is_better:
            return self.to_last > 1 + self.ratio.tolerance
        return self.to_last < 1 - self.ratio.tolerance

    def to_row(self) -> dict[str, Any]:
        """Returns the ratio's row in the result file."""
        ratio, to_last = self.ratio, self.to_last
        return {
            "name": ratio.name,
            "value": ratio.value,
            "bound": describe_bound(ratio),
            "met": ratio.met,
            "last": self.last,
            "to_last": None if to_last is None else round(to_last, 3),
            "tolerance": ratio.tolerance,
        }


def describe_bound(ratio: Ratio) -> str | None:
    """Returns the bound in words."""
    word = "goal: " if ratio.goal else ""
    if ratio.at_least is not None:
        return f"{word}>= {ratio.at_least:g}"
    return None if ratio.at_most is None else f"{word}<= {ratio.at_most:g}"


def judge(ratios: Sequence[Ratio], last: Mapping[str, float]) -> list[Verdict]:
    """Returns each ratio with the value that the last result had under its name."""
    return [Verdict(ratio, last.get(ratio.name)) for ratio in ratios]


def find_problems(verdicts: Sequence[Verdict], last: Mapping[str, float]) -> list[str]:
    """Returns the reasons why the run fails, one line each.

    It is also a reason if this run lacks a ratio that the last result had. Otherwise nobody would notice a regression
    that is no longer measured.
    """
    problems = []
    for verdict in verdicts:
        ratio = verdict.ratio
        if verdict.is_broken:
            problems.append(f"{ratio.name}: {ratio.value:g} does not keep {describe_bound(ratio)}")
        if verdict.has_regressed:
            problems.append(
                f"{ratio.name}: {ratio.value:g} is {verdict.to_last:.2f} of the last result, {verdict.last:g}; "
                f"the tolerance is {ratio.tolerance:.0%}"
            )
    measured = {verdict.ratio.name for verdict in verdicts}
    problems += [f"{name}: in the last result, but not measured in this run" for name in last if name not in measured]
    return problems


def read_last(result: Mapping[str, Any] | None) -> dict[str, float]:
    """Returns the values of the ratios in a result file's content, by name; empty without a result."""
    return {} if result is None else {row["name"]: float(row["value"]) for row in result.get("ratios", [])}
