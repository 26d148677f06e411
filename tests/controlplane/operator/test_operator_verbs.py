"""The shipped Role grants what an operator uses: no call is denied.

Besides the right that only admission checks, one known right is unused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import yaml

from support.controlplane.control_plane import ControlPlane
from support.controlplane.operators import OperatorProcess, wait_idle
from support.controlplane.pipelines import (
    build_pipeline,
    build_two_stages,
    list_children,
    serving_revision,
    stage_of,
    wait_condition,
    wait_settled,
)
from support.controlplane.server.api import Api, ApiError, Manifest, eventually
from support.controlplane.server.api_calls import Call, parse_path
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.fault_proxy import FaultProxy

pytestmark = pytest.mark.controlplane

Grants = set[tuple[str, str, str]]
POD_MONITORS = "podmonitors.monitoring.coreos.com"
# Admission checks this right when an ownerReference sets blockOwnerDeletion. No call of the operator uses it.
BY_ADMISSION = {("omnipipeline.io", "omnipipelines/finalizers", "update")}


@pytest.fixture
def pod_monitor_crd(control_plane: ControlPlane) -> Iterator[None]:
    """Adds the PodMonitor CRD to the cluster for the test."""
    group, names = "monitoring.coreos.com", {"kind": "PodMonitor", "plural": "podmonitors", "singular": "podmonitor"}
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    control_plane.admin.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": POD_MONITORS,
                "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1111"},
            },
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
        }
    )
    eventually(lambda: control_plane.admin.call("GET", f"/apis/{group}/v1")["resources"])
    yield
    control_plane.admin.delete("CustomResourceDefinition", POD_MONITORS)
    # An operator that starts later must not find the kind.
    eventually(lambda: group not in {one["name"] for one in control_plane.admin.call("GET", "/apis")["groups"]})


def test_a_kind_that_is_uninstalled_holds_up_nothing(
    api: Api, control_plane: ControlPlane, pod_monitor_crd: None, operator: OperatorProcess
) -> None:
    api.apply(build_two_stages())
    wait_settled(api)
    eventually(lambda: api.list("PodMonitor"), why="the operator has found the kind")
    control_plane.admin.delete("CustomResourceDefinition", POD_MONITORS)
    before = serving_revision(api)
    api.replace_spec(build_two_stages(defaults={"image": "example.com/stage:2"}))
    eventually(lambda: serving_revision(api) != before, why="the Services, which come after it, switch")
    wait_condition(api, "Degraded", status="False")
    wait_settled(api)


def granted(api: Api) -> Grants:
    """Returns (group, resource, verb) of all rules of the namespace's Roles."""
    return {
        (group, resource, verb)
        for role in api.list("Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def used(calls: list[Call]) -> Grants:
    """Returns (group, resource, verb) that the calls need. A server-side apply that creates also needs `create`."""
    result: Grants = set()
    for call in calls:
        group, resource, _ = parse_path(call.path)
        if resource == call.path:
            continue  # discovery
        result.add((group, resource, call.verb))
        if call.method == "PATCH" and call.status == 201:
            result.add((group, resource, "create"))
    return result


def test_verbs(
    api: Api, proxy: FaultProxy, make_operator: Callable[..., OperatorProcess], pod_monitor_crd: None, gateway_api: None
) -> None:
    with make_operator(server=proxy.url) as operator:
        api.apply(build_two_stages())
        wait_settled(api)
        assert [kind for kind, _ in list_children(api)].count("Deployment") == 2
        eventually(lambda: len(api.list("PodMonitor")) == 1)
        # With scaling a stage has an OmniStage; without, that is deleted.
        scaled = build_two_stages()
        stage_of(scaled, "talker")["scaling"] = {"by": "External"}
        api.replace_spec(scaled)
        wait_settled(api)
        (target,) = eventually(lambda: api.list("OmniStage"))
        api.patch("OmniStage", target["metadata"]["name"], {"metadata": {"labels": None}})
        eventually(lambda: all("labels" in target["metadata"] for target in api.list("OmniStage")))
        eventually(lambda: all("status" in target for target in api.list("OmniStage")))
        # A new revision without a PodDisruptionBudget: objects of every kind but ServiceAccount are pruned.
        api.replace_spec(build_two_stages(replicas=1, defaults={"image": "example.com/stage:2"}))
        wait_settled(api)
        # Without its labels a child is not in the operator's caches, so the operator reads it by name.
        for kind, name in list_children(api):
            api.patch(kind, name, {"metadata": {"labels": None}})
        eventually(lambda: all("labels" in child["metadata"] for child in list_children(api).values()))
        for monitor in api.list("PodMonitor"):
            api.patch("PodMonitor", monitor["metadata"]["name"], {"metadata": {"labels": None}})
        eventually(lambda: all("labels" in monitor["metadata"] for monitor in api.list("PodMonitor")))
        api.replace_spec(build_two_stages(defaults={"image": "example.com/stage:2"}))
        wait_settled(api)
        account = api.list("ServiceAccount", labels="omnipipeline.io/pipeline=omni")[0]["metadata"]["name"]
        api.delete("ServiceAccount", account)
        wait_settled(api)
        # A route of each kind, whose labels somebody removes, then none.
        gateways = {"parentRefs": [{"name": "public"}]}
        sealed = {**gateways, "backendTls": {"caCertificateRefs": [{"name": "cas"}]}}
        for kind, entry in (
            ("GRPCRoute", {"route": {"gatewayApi": gateways}}),
            ("BackendTLSPolicy", {"route": {"gatewayApi": sealed}, "tls": {"secretName": "tls"}}),
            ("HTTPRoute", {"route": {"gatewayApi": {**gateways, "kind": "HTTPRoute"}}}),
            ("Ingress", {"route": {"ingress": {"host": "omni.example.com"}}}),
        ):
            api.replace_spec(build_two_stages(defaults={"image": "example.com/stage:2"}, entry=entry))
            eventually(lambda kind=kind: api.find(kind, "omni"))
            api.patch(kind, "omni", {"metadata": {"labels": None}})
            eventually(lambda kind=kind: "labels" in api.get(kind, "omni")["metadata"])
        api.replace_spec(build_two_stages(defaults={"image": "example.com/stage:2"}))
        eventually(lambda: not api.list("Ingress"))
        eventually(lambda: not api.list("OmniStage"))
        wait_idle(operator)
    assert [call for call in proxy.calls if call.status == 403] == []
    roles = granted(api)
    assert used(proxy.calls) - roles == set()
    # The one unused right: a pipeline's ServiceAccount outlives its revisions, so the operator never deletes it today.
    assert roles - used(proxy.calls) - BY_ADMISSION == {("", "serviceaccounts", "delete")}


def test_without_the_right_to_block_deletion(api: Api, make_operator: Callable[..., OperatorProcess]) -> None:
    """Without the right to `omnipipelines/finalizers` the API server rejects children, and the status says so.

    The admission plugin OwnerReferencesPermissionEnforcement, which the tests' API server enables, checks this right.
    """
    with make_operator():
        role = next(role for role in api.list("Role") if len(role["rules"]) > 3)
        rules = [rule for rule in role["rules"] if rule["resources"] != ["omnipipelines/finalizers"]]
        api.patch("Role", role["metadata"]["name"], {"rules": rules})
        refused = eventually(lambda: blocked_owner_is_refused(api), why="the authorizer applies the changed Role")
        assert refused
        api.apply(build_pipeline())
        degraded = wait_condition(api, "Degraded", status="True", reason="ApplyFailed")
        assert "finalizers" in degraded["message"]
        api.patch("Role", role["metadata"]["name"], {"rules": role["rules"]})
        wait_settled(api)


def blocked_owner_is_refused(api: Api) -> bool:
    """Returns whether the API server denies the operator's account an update of `omnipipelines/finalizers`."""
    attributes = {
        "namespace": api.namespace,
        "verb": "update",
        "group": "omnipipeline.io",
        "resource": "omnipipelines",
        "subresource": "finalizers",
    }
    user = f"system:serviceaccount:{api.namespace}:omnipipeline-operator"
    review: Manifest = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return not answer["status"]["allowed"]


@pytest.mark.parametrize("file", ["cluster", "namespaced"])
def test_the_shipped_files_are_accepted(api_server: ApiServer, file: str, request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "manifests" / "rbac" / f"{file}.yaml").read_text()
    namespace = f"rbac-{file}"
    api = api_server.create_namespace(namespace)
    for manifest in yaml.safe_load_all(text.replace("omnipipeline-system", namespace)):
        try:
            api.apply(manifest, dry_run=True, strict=True)
        except ApiError as error:
            pytest.fail(f"{manifest['kind']} {manifest['metadata']['name']}: {error}")
