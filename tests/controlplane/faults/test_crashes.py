"""The operator dies after every single write and restarts: the final state is the same as without crashes.

Each run of the operator makes one write and never sees the response: the proxy executes the write and withholds the
response, and then the operator is killed. Runs follow one another until nothing is left to write. So for a creation,
an edit and a change of revision, some run starts from each state between two writes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import (
    build_two_stages,
    is_settled,
    list_labelled,
    revisions,
    snapshot,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually
from support.controlplane.server.fault_proxy import FaultProxy

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(600)]

MAX_LIVES = 150
# If the pipeline has settled and the operator makes no write for this long, nothing is left to do.
IDLE_S = 1.0


def edited() -> Manifest:
    """Returns the pipeline with another configuration and number of pods, but the same revision."""
    manifest = build_two_stages(timeouts={"request": 60})
    manifest["spec"]["stages"][1]["replicas"] = 2
    return manifest


def revised() -> Manifest:
    """Returns the pipeline with another image, and so another revision."""
    return build_two_stages(defaults={"image": "example.com/stage:2"})


SCENARIOS = {
    "create": (None, build_two_stages),
    "edit": (build_two_stages, edited),
    "revision": (build_two_stages, revised),
}


@pytest.mark.parametrize(
    "scenario",
    # A change of revision includes the writes of a creation and of an edit. All three are simulated
    # in test_rollout_scenarios.py.
    [pytest.param("create", marks=pytest.mark.full), pytest.param("edit", marks=pytest.mark.full), "revision"],
)
def test_killed_after_each_write(
    control_plane: ControlPlane,
    api: Api,
    proxy: FaultProxy,
    make_operator: Callable[..., OperatorProcess],
    scenario: str,
) -> None:
    first, second = SCENARIOS[scenario]
    expected = undisturbed(api, make_operator, first, second)

    if first is not None:
        with make_operator():
            api.apply(first())
            wait_settled(api)
    api.apply(second())
    operator = make_operator(server=proxy.url)
    lives = 0
    while live_once(api, proxy, operator):
        lives += 1
        assert lives < MAX_LIVES, "it never settles"

    assert lives >= 3, "the operator was killed fewer than 3 times"
    with make_operator() as last:
        wait_settled(api)
        last.wait_reconciled()
        eventually(lambda: snapshot(api) == expected, why="the children of an undisturbed run")
        assert last.metrics()["omni_operator_noop_applies_total"] == 0
    api.delete("OmniPipeline", "omni")
    eventually(lambda: list_labelled(api) == [], why="nothing is orphaned")


def undisturbed(
    api: Api,
    make_operator: Callable[..., OperatorProcess],
    first: Callable[[], Manifest] | None,
    second: Callable[[], Manifest],
) -> dict[tuple[str, str], Manifest]:
    """Returns the final children of a run without crashes. Leaves the namespace empty."""
    with make_operator():
        for manifest in (first, second):
            if manifest is not None:
                api.apply(manifest())
                wait_settled(api)
        eventually(lambda: len(revisions(api)) == 1, why="one revision is left")
        result = snapshot(api)
        api.delete("OmniPipeline", "omni")
        eventually(lambda: list_labelled(api) == [], why="all children are garbage-collected")
    return result


def live_once(api: Api, proxy: FaultProxy, operator: OperatorProcess) -> bool:
    """Runs the operator until its first write. Returns False if nothing is left to write."""
    proxy.stop_after_write(1)
    operator.start(ready=False)
    try:
        settled_since: float | None = None
        while not proxy.stopped.wait(0.05):
            assert operator.child.running, operator.child.log_tail()
            settled = is_settled(api.get("OmniPipeline", "omni")) and operator.is_ready()
            now = time.monotonic()
            settled_since = (settled_since or now) if settled else None
            if settled_since is not None and now - settled_since > IDLE_S:
                return False
        return True
    finally:
        operator.kill()
        proxy.release()
