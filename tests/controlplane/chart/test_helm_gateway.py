"""The chart's gateway: its settings, its RBAC rules, and the NetworkPolicy that lets it call entry stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_gateway.settings import load_settings
from omni_proto.pod_contract import GRPC_PORT, ROLE_LABEL
from support.controlplane.charts.chart_variants import VARIANTS
from support.controlplane.charts.helm import NAMESPACE, Helm, Manifest, pick_one
from support.operator.network_policies import AddressPeer, PodPeer, is_allowed

pytestmark = pytest.mark.controlplane


def test_the_gateway_reads_the_settings_that_the_chart_writes(helm: Helm, tmp_path: Path) -> None:
    manifests = helm.template(VARIANTS["gateway of two namespaces, with everything"])
    gateways = [item for item in manifests if item["metadata"]["name"].endswith("-gateway")]
    path = tmp_path / "gateway.yaml"
    path.write_text(pick_one(gateways, "ConfigMap")["data"]["gateway.yaml"])
    settings = load_settings(path)
    assert (settings.drain_seconds, settings.cors_origins) == (60, ("https://app.example.com",))
    pod = pick_one(gateways, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector.observability.svc:4317"} in container[
        "env"
    ]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.keys_file) == "/etc/omnipipeline-keys/keys.yaml"
    assert settings.entry_ca == "/etc/omnipipeline-ca/ca.crt"
    assert (settings.entry_certificate, settings.entry_key) == (
        "/etc/omnipipeline-client/tls.crt", "/etc/omnipipeline-client/tls.key",
    )  # fmt: skip
    secrets = ("keys", "ca", "tls", "client")
    assert {f"/etc/omnipipeline-{name}" for name in secrets} <= mounted
    assert pod["terminationGracePeriodSeconds"] >= settings.drain_seconds + settings.drain_notice_seconds
    counted = pick_one([item for item in manifests if item["metadata"]["name"].endswith("-replicas")], "Service")
    assert counted["spec"]["clusterIP"] == "None"
    # The Service has all pods of the Deployment that are Ready, and no others.
    assert not counted["spec"].get("publishNotReadyAddresses")
    labels = pick_one(gateways, "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert counted["spec"]["selector"].items() <= labels.items()
    assert container["args"][-6:] == [
        "--replicas=8",
        f"--replicas-of={counted['metadata']['name']}.{counted['metadata']['namespace']}.svc",
        "--namespace=team-a",
        "--namespace=team-b",
        "--activator=[::]:50051",
        "--tls-dir=/etc/omnipipeline-tls",
    ]


@pytest.mark.parametrize(
    ("name", "kind", "count"),
    [("gateway", "ClusterRole", 1), ("gateway of two namespaces, with everything", "Role", 2)],
)
def test_the_gateway_may_watch_pipelines_wake_them_and_nothing_else(
    helm: Helm, name: str, kind: str, count: int
) -> None:
    manifests = helm.template(VARIANTS[name])
    account = "omnipipeline-gateway"
    bindings = [item for item in manifests if any(one["name"] == account for one in item.get("subjects", ()))]
    assert [item["roleRef"]["kind"] for item in bindings] == [kind] * count
    roles = {item["roleRef"]["name"] for item in bindings}
    rules = [item["rules"] for item in manifests if item["kind"] == kind and item["metadata"]["name"] in roles]
    watch = {"apiGroups": ["omnipipeline.io"], "resources": ["omnipipelines"], "verbs": ["list", "watch"]}
    wake = {"apiGroups": ["omnipipeline.io"], "resources": ["omnistages/scale"], "verbs": ["get", "patch"]}
    assert rules == [[watch, wake]] * count


def test_only_a_gateway_that_wakes_grpc_callers_lets_the_operator_write_endpoint_slices(helm: Helm) -> None:
    for name, activator, verbs in (
        ("gateway", None, ["list", "watch"]),
        (
            "gateway of two namespaces, with everything",
            "omnipipeline-gateway-replicas.omnipipeline-system.svc.cluster.local:50051",
            ["create", "delete", "list", "patch", "watch"],
        ),
    ):
        manifests = helm.template(VARIANTS[name])
        rules = [rule for item in manifests if item["kind"] in ("Role", "ClusterRole") for rule in item["rules"]]
        granted = {verb for rule in rules if "endpointslices" in rule.get("resources", ()) for verb in rule["verbs"]}
        assert sorted(granted) == verbs
        operator = pick_one(manifests, "Deployment", suffix="omnipipeline")["spec"]["template"]["spec"]["containers"][0]
        variables = {one["name"]: one.get("value") for one in operator["env"]}
        assert variables.get("OMNI_OPERATOR_ACTIVATOR") == activator
        if activator is not None:
            gateway = pick_one(manifests, "Deployment", suffix="-gateway")["spec"]["template"]["spec"]["containers"][0]
            assert {"name": "activator", "containerPort": 50051} in gateway["ports"]
            policy = pick_one(manifests, "NetworkPolicy", suffix="-gateway")
            assert {"ports": [{"port": "activator", "protocol": "TCP"}]} in policy["spec"]["ingress"]


@pytest.mark.parametrize("name", ["a" * 46, f"{'a' * 39}-{'b' * 6}"])
def test_the_longest_name_of_a_release_fits(helm: Helm, name: str) -> None:
    """A Service's name is a DNS label, which has at most 63 characters."""
    manifests = helm.template({"fullnameOverride": name, "gateway": {"enabled": True}})
    names = [item["metadata"]["name"] for item in manifests if item["kind"] == "Service"]
    assert len(names) == 3
    assert max(map(len, names)) <= 63
    assert not any("--" in name for name in names)


def gateway_pod(manifests: list[Manifest]) -> PodPeer:
    """Returns a pod of the gateway, as the Deployment makes it."""
    template = pick_one(manifests, "Deployment", suffix="-gateway")["spec"]["template"]
    return PodPeer(NAMESPACE, template["metadata"]["labels"])


@pytest.mark.parametrize(
    ("policy", "opened", "closed"),
    [
        ({}, [443, 6443, 8443, 16443], [80, 9443]),
        ({"apiServerPorts": [9443]}, [443, 9443], [6443, 16443]),
        ({"apiServerPorts": []}, [443], [6443, 16443]),
    ],
    ids=["default", "another port", "behind 443"],
)
def test_the_gateway_reaches_api_servers_on_their_ports(
    helm: Helm, policy: dict[str, list[int]], opened: list[int], closed: list[int]
) -> None:
    """The ports of minikube (8443) and MicroK8s (16443) are open by default."""
    manifests = helm.template({"gateway": {"enabled": True, "networkPolicy": policy}})
    policies, pod = [pick_one(manifests, "NetworkPolicy", suffix="-gateway")], gateway_pod(manifests)
    node = AddressPeer("10.0.0.7")
    assert [port for port in opened + closed if is_allowed(policies, pod, node, port)] == opened


@pytest.mark.parametrize("protocol", ["UDP", "TCP"])
@pytest.mark.parametrize(
    ("namespace", "port", "allowed"),
    [("kube-system", 53, True), ("openshift-dns", 5353, True), ("kube-system", 5353, False)],
)
def test_the_gateway_reaches_resolvers_also_those_of_openshift(
    helm: Helm, namespace: str, port: int, allowed: bool, protocol: str
) -> None:
    manifests = helm.template(VARIANTS["gateway"])
    policy = pick_one(manifests, "NetworkPolicy", suffix="-gateway")
    assert is_allowed([policy], gateway_pod(manifests), PodPeer(namespace), port, protocol) is allowed


def test_the_gateway_s_policy_lets_it_call_entry_stages(helm: Helm) -> None:
    policy = pick_one(helm.template(VARIANTS["gateway"]), "NetworkPolicy", suffix="-gateway")
    entry = policy["spec"]["egress"][-1]
    assert entry["ports"] == [{"port": GRPC_PORT, "protocol": "TCP"}]
    assert entry["to"][0]["podSelector"]["matchLabels"] == {ROLE_LABEL: "entry"}
