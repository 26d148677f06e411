"""The operator copies no user data: canary words in pods and in a pipeline's metadata appear in nothing that it writes.

Its Events, statuses, children and logs hold names, reasons, sizes, and the termination message that a container writes
for kubelet when it exits. They repeat no environment variables, arguments or annotations that others have put into a
pod or pipeline, no program output and no error text of a registry. The operator cannot know the contents of Secrets,
because it may not read them (test_operator_rbac.py).
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from omni_operator.state.observed import Observed
from omni_operator.status.publish import build_event
from support.operator.operator_pipelines import make_stages
from support.operator.simulated_cluster import SimulatedCluster

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
    # Metadata that kubectl and other tools write to a pipeline.
    metadata |= {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": WORD, "note": WORD}}
    metadata |= {"labels": {"note": WORD}, "managedFields": [{"manager": WORD}]}
    spec = {"model": {"uri": "file:///models/tiny"}, "defaults": {"image": image}, "stages": make_stages()}
    return SimulatedCluster(
        {"apiVersion": "omnipipeline.io/v1alpha1", "kind": "OmniPipeline", "metadata": metadata, "spec": spec}
    )


def poison(pod: dict[str, Any], state: dict[str, Any]) -> None:
    """Puts the canary wherever a webhook, a sidecar injector or a user may put a secret into a pod."""
    pod["metadata"]["annotations"] = {"sidecar/config": WORD, WORD: "1"}
    pod["metadata"]["labels"][WORD] = WORD
    for container in pod["spec"]["containers"]:
        container["env"] = [*container.get("env", ()), {"name": "API_KEY", "value": WORD}]
        container["args"] = [*container.get("args", ()), f"--token={WORD}"]
    entry = {"name": pod["spec"]["containers"][0]["name"], "ready": False, "restartCount": 3, "state": state}
    pod["status"] |= {"containerStatuses": [entry | {"imageID": WORD}], "hostIP": WORD}


def written(cluster: SimulatedCluster) -> str:
    """Returns everything that the operator wrote to the API server: the pipeline's status, Events and children."""
    observed = Observed(pipeline=cluster.pipeline)
    events = [build_event(observed, event, "operator-1", cluster.now) for event in cluster.events]
    # The simulated cluster keeps children as the operator applied them.
    return json.dumps([cluster.pipeline["status"], events, list(cluster.children.values())])


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_nothing_of_pods_and_specs_is_repeated(state: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """No canary of a pod or of the pipeline's metadata appears in what the operator writes or logs."""
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


def test_only_known_fields_of_a_termination_message_are_repeated() -> None:
    """Of a JSON termination message only `reason`, `message` and `field` are reported, and no other field.

    `written` contains the message, so it would also contain a leak.
    """
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


def test_termination_messages_come_from_files_and_never_from_logs() -> None:
    """terminationMessagePolicy is File, so kubelet never copies a container's log."""
    cluster = make_cluster()
    cluster.settle()
    policies = {
        container.get("terminationMessagePolicy", "File")
        for pod in cluster.pods.values()
        for kind in ("containers", "initContainers")
        for container in pod["spec"].get(kind, ())
    }
    assert policies == {"File"}
