"""Of two operators only the leader writes. The follower takes over when the leader ends or stops renewing its lease."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import build_pipeline, snapshot, wait_settled, written
from support.controlplane.server.api import Api, eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

LEASE_S = "10"
"""So long that no pause of a busy machine ends it."""


def is_leader(operator: OperatorProcess) -> bool:
    return operator.metrics().get("omni_operator_leader") == 1


@pytest.fixture
def pair(make_operator: Callable[..., OperatorProcess]) -> tuple[OperatorProcess, OperatorProcess]:
    """Returns two running operators of one namespace, the leader first."""
    operators = [make_operator("--lease-duration", LEASE_S, identity=name) for name in ("one", "two")]
    for operator in operators:
        operator.start()
    eventually(lambda: any(is_leader(operator) for operator in operators))
    leader, follower = sorted(operators, key=is_leader, reverse=True)
    return leader, follower


def test_only_the_leader_writes(api: Api, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    leader, follower = pair
    api.apply(build_pipeline())
    wait_settled(api)
    api.patch("OmniPipeline", "omni", {"spec": {"defaults": {"image": "example.com/stage:2"}}})
    wait_settled(api)
    wait_idle(leader)
    assert follower.count_writes() == 0
    assert leader.metrics()["omni_operator_noop_applies_total"] == 0
    assert not is_leader(follower)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_the_follower_takes_over(api: Api, pair: tuple[OperatorProcess, OperatorProcess], end: str) -> None:
    leader, follower = pair
    api.apply(build_pipeline())
    wait_settled(api)
    expected = snapshot(api)
    if end == "stopped":
        assert leader.stop() == 0
    else:
        leader.kill()
    name = next(name for kind, name in expected if kind == "Deployment")
    api.delete("Deployment", name)
    eventually(lambda: is_leader(follower) and snapshot(api) == expected, timeout_s=PATIENCE_S)


def test_a_leader_that_was_frozen_does_not_write(api: Api, pair: tuple[OperatorProcess, OperatorProcess]) -> None:
    """A leader that resumes with old caches does not write, because by its clock the lease has expired."""
    old, new = pair
    api.apply(build_pipeline())
    wait_settled(api)
    wait_idle(old)
    before = old.count_writes()
    old.child.send(signal.SIGSTOP)
    eventually(lambda: is_leader(new), timeout_s=PATIENCE_S)
    api.patch("OmniPipeline", "omni", {"spec": {"defaults": {"image": "example.com/stage:2"}}})
    wait_settled(api)
    wait_idle(new)
    children = written(api)
    old.child.send(signal.SIGCONT)
    eventually(lambda: old.is_ready() and not is_leader(old))
    wait_idle(old)
    assert old.count_writes() == before
    assert written(api) == children
