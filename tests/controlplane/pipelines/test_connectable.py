"""Ready and RolloutComplete mean that a client can connect; conditions name what stands in the way, in any phase."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess
from support.controlplane.pipelines import (
    build_pipeline,
    build_stage,
    condition_of,
    revisions,
    serving_revision,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, Manifest, eventually, register
from support.controlplane.server.webhook import MutatingWebhook, Patch
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

for kind, plural in (
    ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
):
    register(kind, "admissionregistration.k8s.io/v1", plural, namespaced=False)


def one_stage(**spec: Any) -> Manifest:
    return build_pipeline(stages=[build_stage("llm", component="acme/llm", outputs=["Text"])], **spec)


@pytest.fixture
def policy(api: Api) -> Iterator[Any]:
    """Yields policy(expression, resources), which denies writes for which the CEL expression is false.

    Returns a function that removes the policy.
    """
    name = f"{api.namespace}-policy"

    def remove() -> None:
        api.delete("ValidatingAdmissionPolicyBinding", name)
        api.delete("ValidatingAdmissionPolicy", name)

    def deny(expression: str, resources: list[str]) -> Any:
        rules = {"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE", "DELETE"]}
        namespace = {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}
        match = {"resourceRules": [{**rules, "resources": resources}], "namespaceSelector": namespace}
        group = "admissionregistration.k8s.io/v1"
        spec = {"matchConstraints": match, "validations": [{"expression": expression}], "failurePolicy": "Fail"}
        metadata = {"name": name}
        api.create({"apiVersion": group, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec})
        binding = {"policyName": name, "validationActions": ["Deny"]}
        api.create(
            {"apiVersion": group, "kind": "ValidatingAdmissionPolicyBinding", "metadata": metadata, "spec": binding}
        )
        return remove

    yield deny
    remove()


def test_without_its_entry_service_a_pipeline_is_not_ready(api: Api, operator: OperatorProcess) -> None:
    """A quota of one Service leaves the stage's own Service, and no way in for clients."""
    hard = {"hard": {"services": "1"}}
    api.create({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "services"}, "spec": hard})
    eventually(lambda: api.get("ResourceQuota", "services")["status"]["hard"] == hard["hard"])
    api.apply(one_stage())

    def says_why() -> str:
        found = wait_condition(api, "Ready", status="False", reason="ApplyFailed")
        return str(found["message"]) if "clients cannot connect" in found["message"] else ""

    assert "exceeded quota: services" in eventually(says_why)
    progressing = wait_condition(api, "Progressing", status="True", reason="ApplyFailed")
    assert "exceeded quota: services" in progressing["message"]
    eventually(lambda: condition_of(api.list("Pod")[0], "Ready")["status"] == "True", why="the stage itself serves")
    api.delete("ResourceQuota", "services")
    wait_settled(api)


def test_a_rollout_is_complete_only_when_the_entry_has_switched(
    api: Api, operator: OperatorProcess, policy: Any
) -> None:
    api.apply(one_stage())
    wait_settled(api)
    old = serving_revision(api)
    remove = policy(
        "!(object.metadata.name in ['omni', 'omni-headless']) || "
        f"object.spec.selector['omnipipeline.io/revision'] == '{old}'",
        ["services"],
    )
    changed = one_stage()
    changed["spec"]["defaults"]["image"] = "example.com/stage:2"
    eventually(lambda: refuses_to_switch(api), why="the policy is in force")
    api.replace_spec(changed)
    degraded = wait_condition(api, "Degraded", status="True", reason="ApplyFailed")
    assert "Service omni" in degraded["message"]
    pipeline = api.get("OmniPipeline", "omni")
    assert serving_revision(api) == old
    assert len(revisions(api)) == 2
    assert condition_of(pipeline, "Ready")["status"] == "True", "clients still reach the old set"
    assert pipeline["status"]["stages"][0]["revision"] == old
    assert condition_of(pipeline, "Progressing")["reason"] != "RolloutComplete"
    assert "denied" in condition_of(pipeline, "Progressing")["message"]
    remove()
    wait_settled(api)
    assert serving_revision(api) != old


def refuses_to_switch(api: Api) -> bool:
    service = api.get("Service", "omni-headless")
    service["spec"]["selector"]["omnipipeline.io/revision"] = "x"
    del service["metadata"]["managedFields"]
    try:
        api.apply(service, dry_run=True)
    except Exception as error:  # noqa: BLE001 - the policy's refusal
        return "denied" in str(error)
    return False


def test_an_update_that_fits_no_node_shows_its_cause(api: Api, operator: OperatorProcess) -> None:
    api.apply(one_stage())
    wait_settled(api)
    api.replace_spec(one_stage(defaults={"image": "example.com/stage:1", "nodeSelector": {"disk": "none"}}))
    progressing = wait_condition(api, "Progressing", status="True", reason="Updating")
    progressing = eventually(
        lambda: (
            (found := wait_condition(api, "Progressing", reason="Updating"))
            and "stage llm:" in found["message"]
            and found
        )
    )
    assert "selector" in progressing["message"] or "no node" in progressing["message"]
    assert condition_of(api.get("OmniPipeline", "omni"), "Ready")["status"] == "True"


def test_what_admission_changes_is_named_until_the_policy_is_gone(
    api: Api, operator: OperatorProcess, control_plane: ControlPlane
) -> None:
    """A webhook keeps two replicas of everything, so a suspended pipeline never ends."""
    api.apply(one_stage())
    wait_settled(api)

    def raise_replicas(manifest: Manifest) -> Patch:
        few = manifest["kind"] == "Deployment" and manifest["spec"].get("replicas", 1) < 2
        return [{"op": "add", "path": "/spec/replicas", "value": 2}] if few else []

    with MutatingWebhook(api, control_plane.pki, raise_replicas):
        api.patch("OmniPipeline", "omni", {"spec": {"suspend": True}})
        degraded = wait_condition(api, "Degraded", status="True", reason="ChangedByAdmission")
        assert "(spec.replicas)" in degraded["message"]
        assert "mutatingwebhookconfigurations" in degraded["message"]
        progressing = wait_condition(api, "Progressing", status="True", reason="Suspending")
        assert "(spec.replicas)" in progressing["message"]
        eventually(lambda: len(api.list("Pod")) == 2, why="two pods")
    # Nothing reports that the webhook is gone: the operator tries again by itself.
    wait_condition(api, "Progressing", status="False", reason="Suspended", timeout_s=2 * PATIENCE_S)
    eventually(lambda: api.list("Pod") == [])
    wait_condition(api, "Degraded", status="False", reason="AsExpected")


def test_images_that_a_mirror_rewrites_do_no_harm_and_are_named(
    api: Api, operator: OperatorProcess, control_plane: ControlPlane
) -> None:
    def mirror(manifest: Manifest) -> Patch:
        path = "/spec/template/spec/containers/0/image"
        return [{"op": "replace", "path": path, "value": "mirror/x:1"}] if manifest["kind"] == "Deployment" else []

    with MutatingWebhook(api, control_plane.pki, mirror):
        api.apply(one_stage())
        settled = wait_settled(api)
        degraded = condition_of(settled, "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("False", "ChangedByAdmission")
        assert "spec.template.spec.containers[name=stage].image" in degraded["message"]


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
def test_a_pipeline_that_a_finalizer_holds_is_terminating(
    api: Api, operator: OperatorProcess, propagation: str
) -> None:
    manifest = one_stage()
    manifest["metadata"]["finalizers"] = ["example.com/audit"]
    api.apply(manifest)
    wait_settled(api)
    api.delete("OmniPipeline", "omni", propagation=propagation)
    ready = wait_condition(api, "Ready", status="False", reason="Terminating")
    assert "example.com/audit" in ready["message"]
    wait_condition(api, "Progressing", status="True", reason="Terminating")
    wait_condition(api, "Degraded", status="False", reason="Terminating")
    pipeline = api.get("OmniPipeline", "omni")
    assert pipeline["status"]["observedGeneration"] == pipeline["metadata"]["generation"]
    for service in ("omni", "omni-headless"):
        api.delete("Service", service)
    if propagation == "Foreground":
        eventually(lambda: api.list("Deployment") == [], why="the garbage collector deletes the children")
        eventually(lambda: api.get("OmniPipeline", "omni")["status"]["readyStages"].startswith("0/"))
    assert api.find("Service", "omni") is None, "nothing is healed any more"
    api.patch("OmniPipeline", "omni", {"metadata": {"finalizers": None}})
    eventually(lambda: api.find("OmniPipeline", "omni") is None, why="the pipeline is gone")
    eventually(lambda: api.list("Deployment") == [] and api.list("Pod") == [])
