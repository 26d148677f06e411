"""What a resource sets of its pods, on a real control plane: it reaches the pods, or the refusal names the field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    REVISION_LABEL,
    STAGE_LABEL,
    build_pipeline,
    build_stage,
    condition_of,
    serving_revision,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, ApiError, Manifest, eventually

pytestmark = pytest.mark.controlplane

SETTINGS: dict[str, Any] = {
    "env": [
        {"name": "LOG_LEVEL", "value": "debug"},
        {"name": "API_TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "api", "optional": True}}},
    ],
    "envFrom": [{"configMapRef": {"name": "proxies", "optional": False}}],
    "volumes": [{"name": "ca", "configMap": {"name": "own-ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ssl/certs/own.crt", "subPath": "ca.crt"}],
    "serviceAccountName": "models",
    "podSecurityContext": {"runAsUser": 1000720000},
    "schedulerName": "default-scheduler",
    "startupSeconds": 900,
}


def single(**fields: Any) -> Manifest:
    return build_pipeline(stages=[build_stage("thinker", outputs=["Text"], **fields)])


def deployment(api: Api) -> Manifest:
    found = eventually(lambda: api.list("Deployment", labels=f"{STAGE_LABEL}=thinker"))
    return found[0]


def account(api: Api, name: str) -> None:
    api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})


def test_settings_reach_the_pods_and_change_them_in_place(api: Api, operator: OperatorProcess) -> None:
    account(api, "models")
    api.apply(single(**SETTINGS), strict=True)
    wait_condition(api, "Ready", status="True")
    (pod,) = api.list("Pod", labels=f"{STAGE_LABEL}=thinker")
    spec, (container,) = pod["spec"], pod["spec"]["containers"]
    assert spec["serviceAccountName"] == "models"
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 1000720000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["env"][-2:] == SETTINGS["env"]
    assert container["envFrom"] == SETTINGS["envFrom"]
    assert [mount for mount in container["volumeMounts"] if mount["name"] == "ca"] == [
        {"name": "ca", "mountPath": "/etc/ssl/certs/own.crt", "subPath": "ca.crt", "readOnly": True}
    ]
    assert container["startupProbe"]["failureThreshold"] == 450
    revision = pod["metadata"]["labels"][REVISION_LABEL]
    api.apply(single(env=[{"name": "LOG_LEVEL", "value": "info"}]), strict=True)
    wait_idle(operator)

    def replaced() -> bool:
        pods = api.list("Pod", labels=f"{STAGE_LABEL}=thinker,{REVISION_LABEL}={revision}")
        return len(pods) == 1 and "envFrom" not in pods[0]["spec"]["containers"][0]

    eventually(replaced)
    spec = deployment(api)["spec"]["template"]["spec"]
    assert spec["serviceAccountName"] == "omni-stages"
    assert "ca" not in {volume["name"] for volume in spec["volumes"]}


def test_devices_by_dynamic_allocation(api: Api, operator: OperatorProcess) -> None:
    """The Deployment asks for them as core/v1 says, and has the start limit of a stage with one GPU."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    api.apply(single(resourceClaims=claims, resources={"claims": [{"name": "gpu"}]}), strict=True)
    spec = deployment(api)["spec"]["template"]["spec"]
    assert spec["resourceClaims"] == claims
    assert spec["containers"][0]["resources"] == {"claims": [{"name": "gpu"}]}
    assert spec["containers"][0]["startupProbe"]["failureThreshold"] == 900


def test_a_missing_service_account_is_named(api: Api, operator: OperatorProcess) -> None:
    api.apply(single(serviceAccountName="nobody"))
    condition = wait_condition(api, "Degraded", status="True")
    assert 'serviceaccount "nobody" not found; create the ServiceAccount, or correct' in condition["message"]
    account(api, "nobody")
    wait_condition(api, "Ready", status="True")


def test_the_entry_service_follows_the_resource_both_ways(api: Api, operator: OperatorProcess) -> None:
    service = {"type": "NodePort", "annotations": {"service.beta.kubernetes.io/x": "internal"}}
    api.apply({**single(), "spec": {**single()["spec"], "entry": {"service": service}}})

    def entry(kind: str) -> bool:
        return bool((live := api.find("Service", "omni")) and live["spec"]["type"] == kind)

    eventually(lambda: entry("NodePort"))
    live = api.get("Service", "omni")
    assert live["metadata"]["annotations"]["service.beta.kubernetes.io/x"] == "internal"
    api.apply(single())
    eventually(lambda: entry("ClusterIP"))
    live = api.get("Service", "omni")
    assert "service.beta.kubernetes.io/x" not in live["metadata"]["annotations"]
    assert "nodePort" not in live["spec"]["ports"][0]


def test_a_load_balancer_keeps_its_class_in_every_rollout(api: Api, operator: OperatorProcess) -> None:
    """The API server lets nobody change the class of a load balancer while there is one."""

    def with_class(name: str | None, image: str) -> Manifest:
        service = {"type": "LoadBalancer", **({"loadBalancerClass": name} if name else {})}
        entry = {"entry": {"service": service}, "defaults": {"image": image}}
        return {**single(), "spec": {**single()["spec"], **entry}}

    api.apply(with_class("example.com/a", "example.com/stage:1"))
    wait_settled(api)
    for name, image in (("example.com/b", "example.com/stage:2"), (None, "example.com/stage:3")):
        before = serving_revision(api)
        api.replace_spec(with_class(name, image))
        eventually(lambda before=before: serving_revision(api) != before, why="the Service switches")
        wait_settled(api)
        assert api.get("Service", "omni")["spec"]["loadBalancerClass"] == "example.com/a"
        said = condition_of(api.get("OmniPipeline", "omni"), "Degraded")["message"]
        assert ("keeps example.com/a" in said) == (name is not None)


def test_extra_engine_args_need_the_operators_permission(
    api: Api, make_operator: Callable[..., OperatorProcess]
) -> None:
    given = {"optimization_level": 2, "cpu_offload_gb": "1.5", "enable_expert_parallel": "true"}
    stages = [{"name": "llm", "component": "generic/llm", "outputs": ["Text"], "extraEngineArgs": given}]
    with make_operator():
        api.apply(build_pipeline(stages=stages), strict=True)
        condition = wait_condition(api, "Ready", status="False", reason="InvalidSpec")
        assert "spec.stages[0].extraEngineArgs: is allowed only by the operator's setting" in condition["message"]
    with make_operator("--allow-extra-engine-args"):
        wait_condition(api, "Ready", status="True")
        (config,) = [item for item in api.list("ConfigMap") if "stage.yaml" in item.get("data", {})]
        assert yaml.safe_load(config["data"]["stage.yaml"])["extraEngineArgs"] == given
    stages[0]["extraEngineArgs"] = {"trust_remote_code": "true"}
    with pytest.raises(ApiError, match="trust_remote_code"):
        api.apply(build_pipeline(stages=stages))


def test_a_policy_forbids_fields(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """The pipeline is refused with the field's path; what served before goes on."""
    with make_operator("--forbidden-fields", "env,serviceAccountName") as operator:
        api.apply(single())
        wait_condition(api, "Ready", status="True")
        api.apply(single(env=[{"name": "A", "value": "b"}]))
        condition = wait_condition(api, "Degraded", status="True", reason="InvalidSpec")
        assert (
            "spec.stages[0].env: is forbidden in this cluster by the operator's setting forbidden-fields"
            in (condition["message"])
        )
        wait_idle(operator)
        names = {item["name"] for item in deployment(api)["spec"]["template"]["spec"]["containers"][0]["env"]}
        assert "A" not in names
