"""The operator writes no data that it should not: canaries in pods and specs, 0 hits.

Promised: Events, status, children and logs of the operator hold names, reasons, sizes and what a stage server wrote for
kubelet about its end. They hold no value of a variable, no argument, no foreign annotation, no program's log, no words
of a registry. Contents of Secrets it cannot know: it may not read them (test_operator_rbac.py).
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from omni_operator.state.observed import Observed
from omni_operator.status.publish import build_event
from support.operator_pipelines import make_stages
from support.simulated_cluster import SimulatedCluster

WORD = "canarino7f3a"
STATES: dict[str, dict[str, Any]] = {
    "pull": {"waiting": {"reason": "ErrImagePull", "message": f"https://me:{WORD}@registry/v2/?token={WORD} denied"}},
    "name": {"waiting": {"reason": "InvalidImageName", "message": WORD}},
    "start": {"waiting": {"reason": "CreateContainerError", "message": f"exec [serve --token {WORD}] failed"}},
    "memory": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": WORD}},
    "killed": {"terminated": {"exitCode": 137, "reason": "Error"}},
    "ended": {"terminated": {"exitCode": 1, "reason": "Error", "message": json.dumps({"prompt": WORD})}},
    "crash": {"waiting": {"reason": "CrashLoopBackOff", "message": WORD}},
}


def make_cluster(image: str = "stage:1") -> SimulatedCluster:
    metadata = {"name": "demo", "namespace": "models", "uid": "0b1c", "generation": 1, "resourceVersion": "1"}
    # What kubectl and others leave at a pipeline is theirs.
    metadata |= {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": WORD, "note": WORD}}
    metadata |= {"labels": {"note": WORD}, "managedFields": [{"manager": WORD}]}
    spec = {"model": {"uri": "file:///models/tiny"}, "defaults": {"image": image}, "stages": make_stages()}
    return SimulatedCluster(
        {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "metadata": metadata, "spec": spec}
    )


def poison(pod: dict[str, Any], state: dict[str, Any]) -> None:
    """Put the canary wherever a webhook, a sidecar's injector or a person may put a secret into a pod."""
    pod["metadata"]["annotations"] = {"sidecar/config": WORD, WORD: "1"}
    pod["metadata"]["labels"][WORD] = WORD
    for container in pod["spec"]["containers"]:
        container["env"] = [*container.get("env", ()), {"name": "API_KEY", "value": WORD}]
        container["args"] = [*container.get("args", ()), f"--token={WORD}"]
    entry = {"name": pod["spec"]["containers"][0]["name"], "ready": False, "restartCount": 3, "state": state}
    pod["status"] |= {"containerStatuses": [entry | {"imageID": WORD}], "hostIP": WORD}


def written(cluster: SimulatedCluster) -> str:
    """Everything that the operator wrote, as it goes to the API server, but for the pipeline, which is a person's."""
    observed = Observed(pipeline=cluster.pipeline)
    events = [build_event(observed, event, "operator-1", cluster.now) for event in cluster.events]
    # Of children the simulation keeps what was applied.
    return json.dumps([cluster.pipeline["status"], events, list(cluster.children.values())])


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_nothing_of_pods_and_specs_is_retold(state: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    cluster = make_cluster()
    cluster.settle()
    told = len(cluster.events)
    for pod in cluster.pods.values():
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        poison(pod, state)
    for _ in range(3):
        cluster.run_deployments()
        cluster.run_replica_sets()
        cluster.reconcile()
    assert len(cluster.events) > told
    assert WORD not in written(cluster)
    assert WORD not in caplog.text


def test_what_a_stage_server_said_of_its_end_is_retold_in_short() -> None:
    """That these tests find what is told: a termination message is told, and nothing beside its three fields."""
    cluster = make_cluster()
    cluster.settle()
    said = {"reason": "StartFailed", "message": "no room for the weights", "field": "model", "traceback": WORD}
    for pod in cluster.pods.values():
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
        poison(pod, {"terminated": {"exitCode": 1, "reason": "Error", "message": json.dumps(said)}})
    cluster.run_deployments()
    cluster.run_replica_sets()
    cluster.reconcile()
    assert written(cluster).count("no room for the weights") > 1
    assert WORD not in written(cluster)


def test_every_container_tells_its_end_by_a_file_and_never_by_its_log() -> None:
    cluster = make_cluster()
    cluster.settle()
    policies = {
        container.get("terminationMessagePolicy", "File")
        for pod in cluster.pods.values()
        for kind in ("containers", "initContainers")
        for container in pod["spec"].get(kind, ())
    }
    assert policies == {"File"}
