"""How fast a number of pods may move: the semantics of a HorizontalPodAutoscaler's `behavior`. Pure functions.

The source is Kubernetes' pkg/controller/podautoscaler/horizontal.go: stabilizeRecommendationWithBehaviors, and
convertDesiredReplicasWithBehaviorRate with its two limits. Like there, the history is kept in memory, and after a
restart the live number of pods is the first recommendation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from omni_proto.pipeline.types.scaling import ScalingBehavior, ScalingPolicy, ScalingRules

UP_WINDOW_S: Final = 0
DOWN_WINDOW_S: Final = 300
UP_POLICIES: Final = (
    ScalingPolicy(type="Pods", value=4, period_seconds=15),
    ScalingPolicy(type="Percent", value=100, period_seconds=15),
)
DOWN_POLICIES: Final = (ScalingPolicy(type="Percent", value=100, period_seconds=15),)
LONGEST_S: Final = 3600
"""Older recommendations and moves have no effect: the largest window of the API."""


@dataclass(slots=True)
class History:
    """What was recommended and done for one stage. Times are seconds of a monotonic clock."""

    recommended: list[tuple[float, int]] = field(default_factory=list)
    """Recommendations, the oldest first."""
    moves: list[tuple[float, int]] = field(default_factory=list)
    """Changes of the number of pods; the last one stays, however old."""
    turned_at: float = -math.inf
    """When the number last changed its direction."""

    def move(self, at: float, change: int) -> None:
        """Add a change of the number of pods."""
        if self.moves and (self.moves[-1][1] > 0) != (change > 0):
            self.turned_at = at
        self.moves.append((at, change))

    def note(self, now: float, recommended: int) -> None:
        """Add a recommendation, and forget what has no effect any more."""
        cut = now - LONGEST_S
        self.recommended = [(at, count) for at, count in self.recommended if at > cut]
        self.moves = [move for move in self.moves[:-1] if move[0] > cut] + self.moves[-1:]
        self.recommended.append((now, recommended))


def damp(
    current: int, desired: int, least: int, most: int, behavior: ScalingBehavior, history: History, now: float
) -> int:
    """Returns the number of pods to move to now, of `current` that the stage has and `desired` that it needs.

    The result is within least..most. The history must hold the earlier recommendations, but need not hold this one.
    """
    stable = _stabilize(current, desired, behavior, history.recommended, now)
    if stable > current:
        limit = max(current, _limit_up(current, behavior.scale_up, history.moves, now))
        stable = min(stable, limit)
    elif stable < current:
        limit = min(current, _limit_down(current, behavior.scale_down, history.moves, now))
        stable = max(stable, limit)
    return max(least, min(stable, most))


def _stabilize(
    current: int, desired: int, behavior: ScalingBehavior, recommended: Iterable[tuple[float, int]], now: float
) -> int:
    up_s = _window(behavior.scale_up, UP_WINDOW_S)
    down_s = _window(behavior.scale_down, DOWN_WINDOW_S)
    lowest = highest = desired
    for at, count in recommended:
        lowest = min(lowest, count) if at > now - up_s else lowest
        highest = max(highest, count) if at > now - down_s else highest
    return min(max(current, lowest), highest)


def _window(rules: ScalingRules, default_s: int) -> int:
    return default_s if rules.stabilization_window_seconds is None else rules.stabilization_window_seconds


def _limit_up(current: int, rules: ScalingRules, moves: Sequence[tuple[float, int]], now: float) -> int:
    if rules.select_policy == "Disabled":
        return current
    limits = []
    for policy in rules.policies or UP_POLICIES:
        began = current - _moved(moves, now - policy.period_seconds)
        step = policy.value if policy.type == "Pods" else began * policy.value / 100
        limits.append(math.ceil(began + step))
    return max(limits) if rules.select_policy == "Max" else min(limits)


def _limit_down(current: int, rules: ScalingRules, moves: Sequence[tuple[float, int]], now: float) -> int:
    if rules.select_policy == "Disabled":
        return current
    limits = []
    for policy in rules.policies or DOWN_POLICIES:
        began = current - _moved(moves, now - policy.period_seconds)
        step = policy.value if policy.type == "Pods" else began * policy.value / 100
        limits.append(max(0, int(began - step)))
    return min(limits) if rules.select_policy == "Max" else max(limits)


def _moved(moves: Sequence[tuple[float, int]], since: float) -> int:
    """Returns by how much the number of pods has changed since a time."""
    return sum(change for at, change in moves if at > since)
