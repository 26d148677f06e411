"""How many pods stages need: by what they report, along the graph, and without room in the cluster."""

from __future__ import annotations

from typing import Any

from benchmarks.scaling.day import most_reversals
from hypothesis import given, settings, strategies as st

from omni_operator.scaling.decision import StageAsk, StageDecision, StageLoad, StageMemory, decide_scale, find_pressed
from omni_operator.scaling.notes import StageNote
from omni_operator.scaling.readings import Reading, find_pairs, load_between
from omni_proto.pipeline.types.scaling import ScalingBehavior
from support.tables import each_row

ABOVE = {"thinker": None, "talker": "thinker", "decoder": "talker"}


def make_asks(current: dict[str, int], **more: dict[str, Any]) -> list[StageAsk]:
    return [
        StageAsk(
            **{
                "name": name,
                "above": above,
                "current": current.get(name, 1),
                "least": 1,
                "most": 20,
                "behavior": ScalingBehavior(),
                "target": 10.0,
                **more.get(name, {}),
            }
        )
        for name, above in ABOVE.items()
    ]


def decide(
    current: dict[str, int],
    loads: dict[str, tuple[float, float]],
    *,
    times: int = 1,
    short: dict[str, float] | None = None,
    **more: dict[str, Any],
) -> dict[str, StageDecision]:
    """Returns the last of `times` equal decisions, 15 s apart."""
    memory: dict[str, StageMemory] = {}
    found: dict[str, StageDecision] = {}
    given = {name: StageLoad(running, waiting, 16.0) for name, (running, waiting) in loads.items()}
    for number in range(times):
        found = decide_scale(make_asks(current, **more), given, memory, 1000.0 + 15.0 * number, short or {})
    return found


def test_only_the_stage_with_load_grows() -> None:
    found = decide(
        {"thinker": 2, "talker": 2, "decoder": 2}, {"thinker": (19, 0), "talker": (20, 18), "decoder": (18, 0)}
    )
    assert {name: one.replicas for name, one in found.items()} == {"thinker": 2, "talker": 4, "decoder": 4}
    # The decoder gets the talker's waiting requests as soon as the talker has the pods for them.
    assert found["talker"].desired == 4
    assert found["decoder"].desired == 4


ROWS = [
    ("within the tolerance", {"talker": 2}, {"talker": (21.9, 0)}, 2),
    ("beyond the tolerance", {"talker": 2}, {"talker": (22.5, 0)}, 3),
    ("waiting requests count", {"talker": 2}, {"talker": (20, 9)}, 3),
    ("nothing to do", {"talker": 1}, {"talker": (0, 0)}, 1),
    ("at most maxReplicas", {"talker": 15}, {"talker": (200, 400)}, 20),
    ("down waits", {"talker": 8}, {"talker": (10, 0)}, 8),
]


@each_row("current, loads, wanted", [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_one_stage(current: dict[str, int], loads: dict[str, tuple[float, float]], wanted: int) -> None:
    assert decide(current, loads)["talker"].replicas == wanted


def test_down_after_five_minutes() -> None:
    assert decide({"talker": 8}, {"talker": (9, 0)}, times=20)["talker"].replicas == 8
    assert decide({"talker": 8}, {"talker": (9, 0)}, times=22)["talker"].replicas == 1
    assert decide({"talker": 8}, {"talker": (10, 0)}, times=22)["talker"].replicas == 2, "a margin stays"


QUEUES = [
    ("twice as many arrive", (48.0, 2400.0, 16.0, 20.0, 10.0), 96.0),
    ("a short queue", (48.0, 10.0, 16.0, 20.0, 10.0), 58.0),
    ("it stays, as with callers that wait for their answers", (48.0, 2400.0, 16.0, 10.0, 10.0), 72.0),
    ("it gets shorter", (48.0, 2400.0, 16.0, 6.0, 8.0), 48.0),
    ("nothing more arrives, and it takes minutes", (48.0, 2400.0, 16.0, 0.0, 8.0), 48.0),
    ("it is nearly gone", (48.0, 60.0, 16.0, 5.0, 8.0), 36.0),
    ("none is there, and less arrives", (48.0, 0.0, 16.0, 6.0, 8.0), 48.0),
    ("nothing is answered yet", (48.0, 10.0, 16.0, 20.0, 0.0), 58.0),
]


@each_row("load, requests", [row[1:] for row in QUEUES], ids=[row[0] for row in QUEUES])
def test_a_queue_counts_as_far_as_it_grows(load: tuple[float, ...], requests: float) -> None:
    assert StageLoad(*load).requests == requests


def test_work_on_a_queue_asks_for_no_pods_below() -> None:
    """The talker gets twice what arrives at the thinker, until the thinker's queue is gone."""
    loads = {"thinker": StageLoad(60.0, 30.0, 16.0, 4.5, 10.0), "talker": StageLoad(60.0, 0.0, 16.0, 10.0, 9.0)}
    found = decide_scale(make_asks({"thinker": 3, "talker": 3}), loads, {}, 1000.0)
    assert {name: one.desired for name, one in found.items()} == {"thinker": 3, "talker": 3}


def test_an_unknown_load_decides_nothing() -> None:
    assert set(decide({}, {"thinker": (5, 0)})) == {"thinker"}


def test_the_default_target_is_a_share_of_the_engine() -> None:
    # 0.7 x 16
    assert decide({"talker": 1}, {"talker": (22, 0)}, talker={"target": None})["talker"].desired == 2


def test_without_room_neither_the_stage_nor_those_below_grow() -> None:
    current = {"thinker": 2, "talker": 3, "decoder": 2}
    loads = {"thinker": (15, 0), "talker": (48, 60), "decoder": (20, 0)}
    free = decide(current, loads)
    assert (free["talker"].replicas, free["decoder"].replicas) == (7, 5)
    stuck = decide(current, loads, talker={"blocked": "no node with 1 free GPU; add nodes"})
    assert (stuck["talker"].replicas, stuck["decoder"].replicas) == (3, 2)
    assert stuck["talker"].desired == 11
    assert "add nodes" in stuck["talker"].why


def test_a_note_says_what_is_short_while_what_was_asked_for_is_needed() -> None:
    cause = "no node with 1 free GPU; add nodes"
    (ask,) = [one for one in make_asks({"talker": 3}, talker={"blocked": cause}) if one.name == "talker"]
    for desired, blocked in ((2, ""), (3, cause), (8, cause)):
        note = StageNote.of(ask, StageDecision(3, desired, ""), external=False)
        assert note.blocked == blocked, desired


def test_a_missed_objective_grows_the_stage_that_holds_it_back() -> None:
    current, loads = (
        {"thinker": 2, "talker": 2, "decoder": 2},
        {"thinker": (10, 0), "talker": (20, 0), "decoder": (12, 0)},
    )
    given = {name: StageLoad(*load, 16.0) for name, load in loads.items()}
    assert find_pressed(make_asks(current), given) == "talker"
    found = decide(current, loads, short={"talker": 1.4})
    assert {name: one.replicas for name, one in found.items()} == {"thinker": 2, "talker": 3, "decoder": 2}
    assert "objective" in found["talker"].why


def test_a_missed_objective_raises_the_need_by_half_at_most() -> None:
    """An objective that more pods cannot keep does not grow the stage for ever."""
    current = {"thinker": 1, "talker": 9, "decoder": 1}
    found = decide(current, {"talker": (40, 0)}, short={"talker": 5.0})
    assert found["talker"].desired == 6


def test_a_fixed_stage_passes_on_only_what_its_pods_can_do() -> None:
    loads = {"thinker": (20, 20), "talker": (20, 0)}
    assert decide({"thinker": 2, "talker": 2}, loads, thinker={"fixed": True})["talker"].desired == 2
    assert decide({"thinker": 2, "talker": 2}, loads)["talker"].desired == 4


def test_a_growing_load_is_met_when_the_pods_are_there() -> None:
    memory: dict[str, StageMemory] = {}
    found: dict[str, StageDecision] = {}
    for number in range(12):
        load = {"talker": StageLoad(40.0 + 2.0 * number, 0.0, 16.0)}
        found = decide_scale(make_asks({"talker": 6}), load, memory, 15.0 * number)
    assert found["talker"].desired > 7, "62 requests now, and more in a minute"


def follow(needs: list[float], pods: int, **more: Any) -> list[tuple[int, int]]:
    """Returns the changes of one stage's number of pods, by their seconds, as its load needs so many, 15 s apart."""
    memory: dict[str, StageMemory] = {}
    changes = []
    for number, need in enumerate(needs):
        load = {"thinker": StageLoad(10.0 * need, 0.0, 16.0)}
        asks = make_asks({"thinker": pods}, thinker=more)[:1]
        decision = decide_scale(asks, load, memory, 15.0 * number)["thinker"]
        if decision.replicas != pods:
            changes.append((15 * number, decision.replicas - pods))
        pods = decision.replicas
    return changes


@settings(max_examples=50)
@given(
    level=st.floats(0.1, 18.0), noise=st.lists(st.floats(1.0, 1.04), min_size=60, max_size=200), pods=st.integers(1, 20)
)
def test_noise_turns_a_stage_at_most_once(level: float, noise: list[float], pods: int) -> None:
    assert most_reversals(follow([level * factor for factor in noise], pods)) <= 1


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0.0, 25.0), st.integers(1, 60)), min_size=1, max_size=12), st.integers(1, 20))
def test_no_load_turns_a_stage_more_than_twice(levels: list[tuple[float, int]], pods: int) -> None:
    """Once down, and once up again, which serves a load that rose. After that it does not shrink for ten minutes."""
    assert most_reversals(follow([need for need, times in levels for _ in range(times)], pods)) <= 2


def test_what_three_bursts_needed_stays() -> None:
    """For half an hour from the first of the three on; without them, and with a window of one's own, it shrinks."""
    burst, rest = [6.0] * 4 + [0.1] * 28, [0.1] * 24
    assert min(at for at, change in follow(burst * 3 + rest * 2, 1) if change < 0 and at > 960) >= 1800
    assert follow(burst * 2 + rest, 1)[-1][1] < 0
    behavior = ScalingBehavior.model_validate({"scaleDown": {"stabilizationWindowSeconds": 300}})
    assert follow(burst * 3, 1, behavior=behavior)[-1][1] < 0


def test_a_window_of_its_own_decides_when_a_stage_shrinks() -> None:
    needs = [1.0] * 4 + [4.0] * 4 + [1.0] * 30 + [4.0] * 4 + [1.0] * 60
    assert [at for at, change in follow(needs, 1) if change < 0][-1] >= 15 * 38 + 600
    behavior = ScalingBehavior.model_validate({"scaleDown": {"stabilizationWindowSeconds": 0}})
    changes = follow(needs, 1, behavior=behavior)
    assert changes[-1][1] < 0
    assert changes[-1][0] <= 15 * 48


def test_what_a_silent_pod_said_is_not_its_load() -> None:
    busy = [Reading(at, 8.0 * at, 0.0, 16.0) for at in (985.0, 1000.0)]
    silent = [Reading(at, 0.0, 0.0, 16.0) for at in (900.0, 915.0)]
    assert load_between(find_pairs([busy, silent], 965.0), 2) == StageLoad(16.0, 0.0, 16.0)
    assert load_between(find_pairs([busy, silent], 900.0), 2) == StageLoad(8.0, 0.0, 16.0)
    assert load_between(find_pairs([silent, busy[:1]], 965.0), 2) is None
