"""The status names the stage, the cause and the next step. It does not flap, and only transitions emit events."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from omni_proto.pod_contract import ExitCode, Termination, TerminationReason
from support.controlplane import pods
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    STAGE_LABEL,
    build_pipeline,
    build_two_stages,
    condition_of,
    stage_of,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually, path_of
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane


class Trouble(NamedTuple):
    """A fault of the talker, and the expected status."""

    reason: str
    stage: dict[str, Any]
    says: tuple[str, ...]
    spec: dict[str, Any] = {}


def crashing(reason: str, message: str, field: str = "", *, behaviour: str = "crash", code: int = 1) -> dict[str, Any]:
    """Returns a stage's pod annotations that make its containers crash with this termination message and exit code."""
    termination = json.dumps({"reason": reason, "message": message, "field": field})
    keys = {"behaviour": behaviour, "termination-message": termination, "exit-code": str(code)}
    return {"podAnnotations": {f"kwok.test/{key}": value for key, value in keys.items()}}


HUB = {"model": {"uri": "hf://org/tiny"}}
TROUBLES = [
    Trouble("ImagePullBackOff", {"image": "example.com/does-not-exist:1"}, ("example.com/does-not-exist:1",)),
    Trouble("Unschedulable", {"nodeSelector": {"kubernetes.io/hostname": "nowhere"}}, ("node",)),
    Trouble(
        "ConfigRejected",
        crashing("InvalidConfiguration", "maxModelLen is 7, too small", "engine.max_model_len", code=78),
        ("maxModelLen is 7",),
    ),
    Trouble(
        "CertificateRejected",
        crashing("InvalidConfiguration", "tls.crt of Secret web does not exist", "listen.tls.tls.crt", code=78),
        ("tls.crt of Secret web does not exist", "spec.entry.tls"),
    ),
    Trouble("EngineDead", crashing("EngineDead", "the engine process ended", code=70), ("the engine process ended",)),
    Trouble("CrashLoopBackOff", crashing("InternalError", "out of tune"), ("out of tune", "kubectl logs")),
    Trouble(
        "ModelNotFound",
        crashing("InvalidConfiguration", "no such repository", "model.uri", behaviour="init-crash", code=78),
        ("no such repository", "spec.model"),
        HUB,
    ),
    Trouble(
        "TokenRejected",
        crashing("InvalidConfiguration", "was refused (403)", "model.token", behaviour="init-crash", code=78),
        ("was refused (403)", "tokenSecretRef"),
        HUB,
    ),
    Trouble(
        "FetchFailed",
        crashing("FetchFailed", "the hub answered 503", "model.uri", behaviour="init-crash"),
        ("the hub answered 503",),
        HUB,
    ),
]


def troubled_pipeline(trouble: Trouble) -> Manifest:
    pipeline = build_pipeline(**trouble.spec)
    stage_of(pipeline, "talker").update(trouble.stage)
    return pipeline


@pytest.mark.parametrize("trouble", TROUBLES, ids=[trouble.reason for trouble in TROUBLES])
def test_cause(api: Api, make_operator: Callable[..., OperatorProcess], trouble: Trouble) -> None:
    with make_operator():
        api.apply(troubled_pipeline(trouble))
        ready = wait_condition(api, "Ready", status="False", reason=trouble.reason, timeout_s=PATIENCE_S)
        for part in ("talker", *trouble.says):
            assert part in ready["message"], ready
        eventually(lambda: api.get("OmniPipeline", "omni")["status"]["readyStages"] == "2/3")
        pipeline = api.get("OmniPipeline", "omni")
        (talker,) = [stage for stage in pipeline["status"]["stages"] if stage["name"] == "talker"]
        assert talker["readyReplicas"] == 0
        assert talker["message"]
        # After the spec is corrected, the failure disappears from the status.
        api.replace_spec(build_pipeline(**trouble.spec))
        settled = wait_settled(api)
        assert condition_of(settled, "Degraded")["status"] == "False"


def test_a_quota_is_exceeded(api: Api, operator: OperatorProcess) -> None:
    hard = {"hard": {"requests.nvidia.com/gpu": "1"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": hard}
    api.create(quota)
    gpu = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    pipeline = build_two_stages(replicas=1)
    for stage in pipeline["spec"]["stages"]:
        stage.update(gpu)
    api.apply(pipeline)
    wait_condition(api, "Ready", status="False", reason="QuotaExceeded", timeout_s=PATIENCE_S)
    api.delete("ResourceQuota", "gpus")
    # The ReplicaSet controller retries with growing pauses, without a change of the Deployment.
    wait_settled(api, timeout_s=3 * PATIENCE_S)


def test_a_paused_deployment_is_named_until_it_is_resumed(api: Api, operator: OperatorProcess) -> None:
    api.apply(build_pipeline())
    wait_settled(api)
    (talker,) = api.list("Deployment", labels=f"{STAGE_LABEL}=talker")
    name = talker["metadata"]["name"]
    api.patch("Deployment", name, {"spec": {"paused": True}})
    changed = build_pipeline()
    stage_of(changed, "talker")["limits"] = {"maxConcurrentRequests": 7}
    api.replace_spec(changed)
    degraded = wait_condition(api, "Degraded", status="True", reason="RolloutPaused", timeout_s=PATIENCE_S)
    assert "stage talker: its Deployment is paused" in degraded["message"]
    assert f"kubectl rollout resume deployment/{name} -n {api.namespace}" in degraded["message"]
    assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True", "the old pods keep serving"
    api.patch("Deployment", name, {"spec": {"paused": None}})
    assert condition_of(wait_settled(api), "Degraded")["status"] == "False"


def test_an_object_that_a_quota_denies_is_not_an_error_of_the_operator(api: Api, operator: OperatorProcess) -> None:
    hard = {"hard": {"count/deployments.apps": "1"}}
    api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "objects"}, "spec": hard})
    eventually(lambda: api.get("ResourceQuota", "objects")["status"]["hard"] == hard["hard"])
    api.apply(build_pipeline())
    wait_condition(api, "Degraded", status="True", reason="ApplyFailed", timeout_s=PATIENCE_S)
    # A reconcile counts after its status is written.
    eventually(lambda: operator.metrics()['omni_operator_reconcile_total{result="denied"}'] >= 1)
    assert operator.metrics()['omni_operator_reconcile_total{result="error"}'] == 0
    api.delete("ResourceQuota", "objects")
    wait_settled(api)


def test_running_pods_fail_and_recover(api: Api, operator: OperatorProcess) -> None:
    api.apply(build_pipeline())
    before = wait_settled(api)
    (pod,) = api.list("Pod", labels=f"{STAGE_LABEL}=talker")
    left = Termination(TerminationReason.ENGINE_DEAD, "the engine process ended")
    pods.crash(api, pod, left.encode(), exit_code=ExitCode.ENGINE_DEAD)
    ready = wait_condition(api, "Ready", status="False", reason="EngineDead")
    assert "talker" in ready["message"]
    assert ready["lastTransitionTime"] >= condition_of(before, "Ready")["lastTransitionTime"]
    pods.set_ready(api, api.get("Pod", pod["metadata"]["name"]))
    after = wait_settled(api)
    assert condition_of(after, "Degraded")["status"] == "False"


def test_no_flapping_and_events_on_transitions(api: Api, operator: OperatorProcess) -> None:
    """A successful creation, edit in place and change of revision cause no flapping and only Normal events."""
    seen: list[tuple[str, str]] = []
    done = threading.Event()

    version = api.call("GET", path_of("OmniPipeline", api.namespace))["metadata"]["resourceVersion"]

    def follow() -> None:
        # One watch, because nothing that happens between two would be seen. It ends with the thread, or the namespace.
        for event in api.watch("OmniPipeline", timeout_s=1800, resource_version=version):
            if done.is_set():
                return
            conditions = (event["object"].get("status") or {}).get("conditions") or []
            for kind in ("Ready", "Degraded"):
                for condition in conditions:
                    if condition["type"] == kind and (not seen or (kind, condition["status"]) not in last(seen)):
                        seen.append((kind, condition["status"]))

    threading.Thread(target=follow, daemon=True).start()
    api.create(build_pipeline())
    wait_settled(api)
    edited = build_pipeline(timeouts={"request": 60})
    api.replace_spec(edited)
    wait_settled(api)
    edited["spec"]["defaults"]["image"] = "example.com/stage:2"
    api.replace_spec(edited)
    wait_settled(api)
    wait_idle(operator)
    eventually(lambda: ("Ready", "True") in seen, why="the watch has told everything")
    done.set()
    assert [status for kind, status in seen if kind == "Ready"] in (["False", "True"], ["Unknown", "False", "True"])
    assert {status for kind, status in seen if kind == "Degraded"} <= {"False", "Unknown"}
    events = [event for event in api.list("Event") if event["involvedObject"]["kind"] == "OmniPipeline"]
    assert events
    assert len(events) <= 12, [(event["reason"], event["message"]) for event in events]
    assert all(event.get("count", 1) == 1 for event in events)
    assert {event["type"] for event in events} == {"Normal"}


def last(seen: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Returns the latest entry of each kind."""
    return set(dict(seen).items())
