"""The semantics of an HPA's `behavior`, row by row."""

from __future__ import annotations

from typing import Any, Final

from omni_operator.scaling.damping import History, damp
from omni_proto.pipeline.types.scaling import ScalingBehavior
from support.tables import each_row

NOW: Final = 10_000.0


def make_behavior(**fields: Any) -> ScalingBehavior:
    return ScalingBehavior.model_validate(fields)


def pods(value: int, period: int = 60) -> dict[str, Any]:
    return {"type": "Pods", "value": value, "periodSeconds": period}


def percent(value: int, period: int = 60) -> dict[str, Any]:
    return {"type": "Percent", "value": value, "periodSeconds": period}


UP = {"scaleUp": {"policies": [pods(2), percent(50)]}}
DOWN_NOW = {"stabilizationWindowSeconds": 0}

ROWS: Final[list[tuple[str, dict[str, Any], int, int, list[tuple[float, int]], list[tuple[float, int]], int]]] = [
    # name, behavior, current, desired, recommendations before, moves before, result
    ("up at once, by 4 pods", {}, 1, 9, [], [], 5),
    ("up at once, twofold", {}, 10, 50, [], [], 20),
    ("the last 15 s count", {}, 20, 50, [], [(NOW - 10, 10)], 20),
    ("earlier moves do not", {}, 20, 50, [], [(NOW - 16, 10)], 40),
    ("down waits 300 s", {}, 9, 2, [(NOW - 299, 8), (NOW - 10, 2)], [], 8),
    ("then all at once", {}, 9, 2, [(NOW - 300, 8), (NOW - 10, 2)], [], 2),
    ("the largest of two policies", UP, 10, 30, [], [], 15),
    ("the smallest of two policies", {"scaleUp": {**UP["scaleUp"], "selectPolicy": "Min"}}, 10, 30, [], [], 12),
    ("up disabled", {"scaleUp": {"selectPolicy": "Disabled"}}, 4, 30, [], [], 4),
    ("down disabled", {"scaleDown": {"selectPolicy": "Disabled"}}, 4, 1, [], [], 4),
    ("down by policy", {"scaleDown": {**DOWN_NOW, "policies": [pods(1)]}}, 6, 1, [], [], 5),
    ("down by policy, used up", {"scaleDown": {**DOWN_NOW, "policies": [pods(1)]}}, 5, 1, [], [(NOW - 30, -1)], 5),
    ("down by percent", {"scaleDown": {**DOWN_NOW, "policies": [percent(10)]}}, 30, 10, [], [], 27),
    (
        "an up move gives room to go down",
        {"scaleDown": {**DOWN_NOW, "policies": [pods(1)]}},
        6,
        1,
        [],
        [(NOW - 9, 2)],
        3,
    ),
    ("up waits for its window", {"scaleUp": {"stabilizationWindowSeconds": 60}}, 3, 9, [(NOW - 50, 4)], [], 4),
    ("between the windows it stays", {"scaleUp": {"stabilizationWindowSeconds": 60}}, 6, 9, [(NOW - 50, 4)], [], 6),
    ("at most maxReplicas", {}, 30, 90, [], [], 40),
    ("at least minReplicas", {"scaleDown": DOWN_NOW}, 5, 0, [], [], 1),
]


@each_row("behavior, current, desired, recommended, moves, wanted", [row[1:] for row in ROWS], ids=[r[0] for r in ROWS])
def test_behavior(
    behavior: dict[str, Any],
    current: int,
    desired: int,
    recommended: list[tuple[float, int]],
    moves: list[tuple[float, int]],
    wanted: int,
) -> None:
    history = History(list(recommended), list(moves))
    assert damp(current, desired, 1, 40, make_behavior(**behavior), history, NOW) == wanted


def test_the_history_forgets() -> None:
    history = History()
    for second in range(0, 20_000, 15):
        history.note(float(second), 1)
    assert len(history.recommended) == 240
