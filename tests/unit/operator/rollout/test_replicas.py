"""How many replicas each stage has: the final number (goal), and the number at the next step (now)."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import omni_operator
from omni_operator.rollout.replicas import Fate, decide_replicas, first_replicas
from omni_operator.state.live import LiveSet, LiveStage
from omni_proto.pipeline import OmniPipeline
from support.operator.operator_pipelines import make_pipeline, make_stages

ASKED = {"thinker": 1, "talker": 3, "token2wav": 2}
NONE = dict.fromkeys(ASKED, 0)


def pipeline(suspend: bool = False) -> OmniPipeline:
    return make_pipeline([{**stage, "replicas": ASKED[stage["name"]]} for stage in make_stages()], suspend=suspend)


def stage(name: str, replicas: int, pods: int) -> LiveStage:
    deployment: dict[str, Any] = {
        "metadata": {"generation": 1},
        "spec": {"replicas": replicas},
        "status": {"observedGeneration": 1, "replicas": pods},
    }
    return LiveStage(name, deployment, pods=[{"metadata": {"name": f"{name}-{index}"}} for index in range(pods)])


def live(**stages: tuple[int, int]) -> LiveSet:
    """Returns a live set. Each stage is given as two numbers: the replicas of its Deployment, and its pods."""
    return LiveSet("abc1234", {name: stage(name, *numbers) for name, numbers in stages.items()})


@pytest.mark.parametrize(
    "present",
    [live(), live(thinker=(1, 1), talker=(3, 3), token2wav=(2, 2)), live(thinker=(9, 0), talker=(0, 7))],
    ids=["nothing", "all", "edited by hand"],
)
def test_a_set_that_runs_has_what_is_asked_for(present: LiveSet) -> None:
    replicas = decide_replicas(pipeline(), present, Fate.RUN)
    assert replicas.goal == replicas.now == ASKED


@pytest.mark.parametrize("fate", [Fate.SUSPEND, Fate.RETIRE])
@pytest.mark.parametrize(
    ("present", "now"),
    [
        (live(thinker=(1, 1), talker=(3, 3), token2wav=(2, 2)), {"thinker": 0, "talker": 3, "token2wav": 2}),
        (live(thinker=(0, 1), talker=(3, 3), token2wav=(2, 2)), {"thinker": 0, "talker": 3, "token2wav": 2}),
        (live(thinker=(0, 0), talker=(3, 3), token2wav=(2, 2)), {"thinker": 0, "talker": 0, "token2wav": 2}),
        (live(thinker=(0, 0), talker=(0, 1), token2wav=(5, 5)), {"thinker": 0, "talker": 0, "token2wav": 5}),
        (live(thinker=(0, 0), talker=(0, 0), token2wav=(2, 2)), NONE),
        (live(), NONE),
    ],
    ids=["begins", "the entry drains", "the entry is gone", "as it is, not as asked for", "the last one", "nothing"],
)
def test_a_set_ends_from_the_entry_downwards(fate: Fate, present: LiveSet, now: dict[str, int]) -> None:
    replicas = decide_replicas(pipeline(), present, fate)
    assert (replicas.goal, replicas.now) == (NONE, now)


def test_to_suspend_starts_no_pods_and_a_retired_set_keeps_what_it_needs() -> None:
    """The talker has lost its Deployment while its upstream stage, the thinker, drains.

    A retired set gets the talker back, because requests in flight may need it. A suspended set starts no pods.
    """
    present = live(thinker=(1, 1), token2wav=(2, 2))
    assert decide_replicas(pipeline(), present, Fate.SUSPEND).now == {"thinker": 0, "talker": 0, "token2wav": 0}
    assert decide_replicas(pipeline(), present, Fate.RETIRE).now == {"thinker": 0, "talker": 3, "token2wav": 0}


def test_a_set_whose_spec_is_lost_stays_as_it_is() -> None:
    replicas = decide_replicas(None, live(thinker=(4, 1)), Fate.RUN)
    assert replicas.goal == replicas.now == {"thinker": 4}


def test_at_first() -> None:
    """A new set starts with the replicas of its spec, and a suspended one with none."""
    assert first_replicas(pipeline()) == ASKED
    assert first_replicas(pipeline(suspend=True)) == NONE


def test_stages_come_in_the_order_of_the_graph() -> None:
    turned = make_pipeline(list(reversed(make_stages())))
    for fate in Fate:
        replicas = decide_replicas(turned, live(), fate)
        assert list(replicas.goal) == list(replicas.now) == list(ASKED)


def test_no_other_module_decides_replicas() -> None:
    """Other modules pass on what replicas.py decided: the Deployment's builder writes it, the status reports it."""
    package = Path(omni_operator.__file__).parent
    written, made, passed_on = set[str](), set[str](), set[str]()
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Dict(keys, values):
                    found = [value for key, value in zip(keys, values, strict=True) if is_replicas(key)]
                    written |= {f"{name}: {ast.unparse(value)}" for value in found}
                case ast.Subscript(slice=key, ctx=ast.Store()) if is_replicas(key):
                    written.add(f"{name}: {ast.unparse(node)}")
                case ast.Call(ast.Name("Replicas")):
                    made.add(name)
                case ast.Call(ast.Name("StageBuild" | "RevisionPart"), _, keywords):
                    passed_on |= {name for keyword in keywords if keyword.arg == "replicas"}
    assert written == {
        "desired/deployment.py: build.replicas",
        "status/status.py: stage.wanted",
        # OmniStages: their first number, the number that follows the load, and their status.
        "reconcile.py: replicas",
        "scaling/scaler.py: replicas",
        "rollout/plan.py: int(value_at(pods.deployment, 'status', 'replicas', default=0))",
    }
    assert made == {"rollout/replicas.py"}
    assert passed_on == {"desired/children.py"}


def is_replicas(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value == "replicas"
