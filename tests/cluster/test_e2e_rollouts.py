"""No call fails during rolling updates, a new revision, or a change of replicas.

test_e2e_gateway.py rolls out the entry stage, and also checks calls through the gateway.

`make soak-cluster` makes each change ten times.
"""

from __future__ import annotations

import pytest

from support.cluster.changes import Changes, Outcome
from support.cluster.client_pod import ClientPod
from support.cluster.cluster import Cluster
from support.controlplane.server.api import Api, Manifest

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def changes(cluster: Cluster, speech: Api, tiny_omni: Manifest, client: ClientPod) -> Changes:
    return Changes(cluster, speech, client)


def assert_unnoticed(outcome: Outcome) -> None:
    assert outcome.answered
    assert not outcome.failures


# The last stage's pods also come and go in the change of replicas below.
@pytest.mark.parametrize("stage", ["talker", pytest.param("token2wav", marks=pytest.mark.full)])
def test_a_rolling_update_of_a_stage_fails_no_call(stage: str, changes: Changes) -> None:
    assert_unnoticed(changes.roll(stage))


def test_a_new_revision_takes_over_and_fails_no_call(changes: Changes) -> None:
    assert_unnoticed(changes.switch_revision())


def test_more_replicas_take_traffic_and_fewer_drain(changes: Changes) -> None:
    assert_unnoticed(changes.scale("token2wav", 3))
