"""The rendered chart: lint, variants of values checked by schemas and a real API server, rejected values, notes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane.binaries import KUBERNETES_VERSION, find_binaries, gateway_api_crds
from support.controlplane.charts.chart_variants import EVERYTHING, VARIANTS
from support.controlplane.charts.helm import (
    CHART,
    NAMESPACE,
    RELEASE,
    ROOT,
    VERSION,
    Helm,
    Manifest,
    operator_process,
    pick_one,
    pick_operators,
    selectors_of,
)
from support.controlplane.pipelines import drift
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.schemas import LOCATION, write_schemas
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

OTHER_CRDS = sorted((ROOT / "tests" / "support" / "controlplane" / "crds").glob("*_crd.yaml"))
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """Returns the API server with the variants' namespaces and the CRDs of the Prometheus operator and Gateway API."""
    api_server.apply_crds(*OTHER_CRDS, *gateway_api_crds())
    for name in (NAMESPACE, "team-a", "team-b", "2024"):
        api_server.create_namespace(name, labels={"pod-security.kubernetes.io/enforce": "restricted"})
    return api_server


# Lint and rendering


def test_helm_lints_every_variant(helm: Helm, subtests: pytest.Subtests) -> None:
    for name, values in VARIANTS.items():
        with subtests.test(name):
            command = ("lint", "--strict", CHART, f"--kube-version={KUBERNETES_VERSION}")
            assert "0 chart(s) failed" in helm.run(*command, values=values).stdout


@pytest.fixture(scope="module")
def schemas(helm: Helm, server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the API server's schema of each kind that a variant has."""
    folder = tmp_path_factory.mktemp("schemas")
    manifests = [item for values in VARIANTS.values() for item in helm.template(values)]
    write_schemas(server.admin, folder, {(item["apiVersion"], item["kind"]) for item in manifests})
    return folder


def test_every_variant_has_the_apis_schemas(helm: Helm, schemas: Path, tmp_path: Path) -> None:
    checker = find_binaries("kubeconform")["kubeconform"]
    count = 0
    for name, values in VARIANTS.items():
        manifests = helm.template(values)
        count += len(manifests)
        (tmp_path / f"{name.replace('/', '-')}.yaml").write_text(dump_manifests(manifests))
    # One process, which reads each schema once. It names the file of what is wrong.
    command = [str(checker), "-strict", "-summary", "-schema-location", f"{schemas}/{LOCATION}", str(tmp_path)]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0" in checked.stdout


def test_the_api_server_accepts_every_variant(helm: Helm, server: ApiServer, subtests: pytest.Subtests) -> None:
    """Strict validation finds no unknown or duplicate field, and the API server keeps what is written: anything else
    would show as drift in Argo CD and Flux.

    Pod Security `restricted` warns only about the variant "bare pods", which has no security contexts.
    """
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "--output=json", "-f", "-")
    for name, values in VARIANTS.items():
        bare = name == "bare pods"
        left_out = {"CustomResourceDefinition", *(["Pod"] if bare else [])}
        manifests = [item for item in helm.template(values) if item["kind"] not in left_out]
        with subtests.test(name):
            done = server.kubectl(*command, stdin=dump_manifests(manifests))
            # The pod is a hook, which no tool compares.
            pairs = zip(manifests, json.loads(done.stdout)["items"], strict=True)
            assert [lines for item, live in pairs if item["kind"] != "Pod" and (lines := drift(item, live))] == []
            assert ("Warning" in done.stderr) == bare, done.stderr


def dump_manifests(manifests: list[Manifest]) -> str:
    return str(yaml.dump_all(manifests, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper)))


@pytest.mark.parametrize("name", ["default", "everything", "nothing optional", "two replicas"])
def test_selectors_select_the_operators_pods_and_not_the_tests(helm: Helm, name: str) -> None:
    manifests = helm.template(VARIANTS[name])
    pod = pick_operators(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    test = pick_one(manifests, "Pod")["metadata"]["labels"]
    selectors = [selector for item in manifests for selector in selectors_of(item)]
    assert len(selectors) >= 2
    for selector in selectors:
        assert selector.items() <= pod.items()
        assert not selector.items() <= test.items()


def test_every_object_says_where_it_comes_from(helm: Helm) -> None:
    for manifest in helm.template(EVERYTHING):
        labels = manifest["metadata"]["labels"]
        assert labels["team"] == "speech", manifest["kind"]
        assert labels["app.kubernetes.io/part-of"] == "omnipipeline"
        if manifest["kind"] not in CLUSTER_SCOPED:
            assert manifest["metadata"]["namespace"] in (NAMESPACE, "team-a", "team-b")


def test_a_label_of_one_kind_of_object_replaces_the_common_one(helm: Helm) -> None:
    """A label that is rendered twice would fail here: the YAML loader of Helm.template refuses duplicate keys."""
    manifests = helm.template(VARIANTS["labels that repeat others"])
    assert {item["metadata"]["labels"]["app.kubernetes.io/part-of"] for item in manifests} == {"speech"}
    replaced = {item["kind"] for item in manifests if item["metadata"]["labels"]["team"] == "metrics"}
    assert replaced == {"ServiceMonitor", "PrometheusRule", "ConfigMap"}
    template = pick_operators(manifests, "Deployment")["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "operators"


def test_a_tenant_needs_no_rights_in_the_cluster(helm: Helm) -> None:
    """With these values the chart renders no cluster-scoped object."""
    manifests = helm.template(VARIANTS["no rights in the cluster"])
    assert {item["kind"] for item in manifests} & CLUSTER_SCOPED == set()


def test_only_the_tests_pod_may_scrape(helm: Helm) -> None:
    """The operator's NetworkPolicy admits Helm's test pod, even if values restrict who may scrape."""
    manifests = helm.template(EVERYTHING)
    (rule,) = pick_operators(manifests, "NetworkPolicy")["spec"]["ingress"]
    peers = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    labels = pick_one(manifests, "Pod")["metadata"]["labels"]
    assert [peer for peer in peers if peer.items() <= labels.items()]


def test_a_spread_constraint_keeps_the_selector_that_it_has(helm: Helm) -> None:
    constraint = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    own = {"labelSelector": {"matchLabels": {"team": "speech"}}}
    manifests = helm.template({"topologySpreadConstraints": [constraint, constraint | own]})
    pods = pick_operators(manifests, "Deployment")["spec"]["template"]
    filled, kept = pods["spec"]["topologySpreadConstraints"]
    assert filled["labelSelector"]["matchLabels"].items() <= pods["metadata"]["labels"].items()
    assert kept == constraint | own


@pytest.mark.parametrize(
    ("values", "image", "stage_image"),
    [
        ({}, f"omnipipeline-operator:{VERSION}", f"omnipipeline-stage:{VERSION}"),
        (
            {"imageRegistry": "r.example:5000/a"},
            f"r.example:5000/a/omnipipeline-operator:{VERSION}",
            f"r.example:5000/a/omnipipeline-stage:{VERSION}",
        ),
        (
            {"image": {"digest": f"sha256:{'a' * 64}", "tag": "x"}, "stageImage": {"repository": "s", "tag": "gpu"}},
            f"omnipipeline-operator@sha256:{'a' * 64}",
            "s:gpu",
        ),
    ],
)
def test_images(helm: Helm, values: Mapping[str, Any], image: str, stage_image: str) -> None:
    manifests = helm.template(values)
    containers = [pick_one(manifests, "Pod")["spec"]["containers"][0]]
    containers += pick_operators(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert {container["image"] for container in containers} == {image}
    assert operator_process(pick_operators(manifests, "Deployment"))[1]["OMNI_OPERATOR_DEFAULT_IMAGE"] == stage_image


# Rejected values


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"replica": 2}, "additional properties 'replica' not allowed"),
    ({"image": {"tags": "1"}}, "at '/image': additional properties 'tags' not allowed"),
    ({"replicas": "two"}, "at '/replicas': got string, want integer"),
    ({"replicas": -1}, "at '/replicas': minimum: got -1, want 0"),
    ({"image": {"tag": 1.5}}, "at '/image/tag': got number, want string"),
    ({"image": {"digest": "abc"}}, "at '/image/digest': 'abc' does not match pattern '^(sha256:[0-9a-f]{64})?$'"),
    ({"image": {"pullPolicy": "Sometimes"}}, "value must be one of 'Always', 'IfNotPresent', 'Never'"),
    ({"imageRegistry": "r.example/"}, "at '/imageRegistry'"),
    ({"watchNamespaces": "team-a"}, "at '/watchNamespaces': got string, want array"),
    ({"watchNamespaces": ["Team"]}, "at '/watchNamespaces/0': 'Team' does not match pattern"),
    ({"watchNamespaces": ["a", "a"]}, "items at 0 and 1 are equal"),
    ({"hubEndpoint": "hub.example"}, "at '/hubEndpoint'"),
    ({"operator": {"logLevel": "loud"}}, "at '/operator/logLevel'"),
    ({"operator": {"workers": 0}}, "at '/operator/workers': minimum: got 0, want 1"),
    ({"operator": {"extraArgs": [1]}}, "at '/operator/extraArgs/0': got number, want string"),
    ({"gateway": {"networkPolicy": {"apiServerPorts": ["https"]}}}, "apiServerPorts/0': got string, want integer"),
    ({"metrics": {"podMonitors": {"labels": {"a": 1}}}}, "/podMonitors/labels/a': got number, want"),
    ({"podAnnotations": {"a": True}}, "at '/podAnnotations/a': got boolean, want"),
    ({"tolerations": ["x"]}, "at '/tolerations/0': got string, want object"),
    ({"fullnameOverride": "Omni"}, "at '/fullnameOverride'"),
]


def test_wrong_values_are_refused_by_name(helm: Helm, subtests: pytest.Subtests) -> None:
    for values, says in REFUSED:
        with subtests.test(says):
            assert says in helm.refusal_of(values)


@pytest.mark.parametrize("label", ["name", "instance", "component"])
def test_labels_that_select_pods_are_refused(helm: Helm, label: str) -> None:
    key = f"app.kubernetes.io/{label}"
    assert f"commonLabels must not contain {key}: " in helm.refusal_of({"commonLabels": {key: "mine"}})


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    done = helm.run("template", RELEASE, CHART, "--kube-version=v1.29.9", check=False)
    assert "requires kubeVersion: >=1.30.0-0" in done.stdout


# Notes after an install


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, ["serves every namespace.", "get omnipipelines --namespace default", "unauthenticated plaintext"]),
        ({"watchNamespaces": ["team-a", "b"]}, ["serves team-a, b.", "kubectl get omnipipelines --namespace team-a"]),
        (
            {"gateway": {"enabled": True, "tlsSecret": "a", "service": {"port": 443}}},
            ["service/never-omnipipeline-gateway 8000:443", "curl --insecure https://127.0.0.1:8000", "no API keys"],
        ),
        (
            {"gateway": {"enabled": True, "keysSecret": "a", "ingress": {"enabled": True, "hosts": ["b.example"]}}},
            ['/v1/models --header "Authorization: Bearer KEY"', "From outside: http://b.example/v1/models"],
        ),
        ({"replicas": 0}, ["It has no pods"]),
        ({"crds": {"install": False}}, ["This release does not install the CRD"]),
    ],
)
def test_notes(server: ApiServer, tmp_path: Path, values: Mapping[str, Any], says: list[str]) -> None:
    helm = Helm(tmp_path, server.kubeconfig)
    said = helm.run("install", "never", CHART, "--dry-run=server", "--take-ownership", values=values).stdout
    notes = said.rpartition("NOTES:")[2]
    for part in says:
        assert part in notes, notes
