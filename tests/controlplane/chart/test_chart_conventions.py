"""What parent charts and chart users expect of every chart: enabled, global, names, additional objects, hosts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane.charts.helm import CHART, Helm, Manifest, pick_one

pytestmark = pytest.mark.controlplane

GLOBALS = {"imageRegistry": "mirror.example/all", "imagePullSecrets": ["one", {"name": "two"}]}


def build_parent(directory: Path, **dependency: str) -> Path:
    """Returns a chart that has the chart as its only dependency."""
    parent = directory / "parent"
    shutil.copytree(CHART, parent / "charts" / "omnipipeline")
    facts = yaml.safe_load((CHART / "Chart.yaml").read_text())
    dependencies = [{"name": "omnipipeline", "version": facts["version"], **dependency}]
    chart = {"apiVersion": "v2", "name": "parent", "version": "1.0.0", "dependencies": dependencies}
    (parent / "Chart.yaml").write_text(yaml.safe_dump(chart))
    (parent / "templates").mkdir()
    (parent / "templates" / "own.yaml").write_text("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: own}\n")
    return parent


def pod_specs(manifests: list[Manifest]) -> list[Any]:
    deployments = [item["spec"]["template"]["spec"] for item in manifests if item["kind"] == "Deployment"]
    return [*deployments, pick_one(manifests, "Pod")["spec"]]


@pytest.mark.parametrize("alias", ["", "speech"])
def test_a_parent_switches_the_chart_off(helm: Helm, tmp_path: Path, alias: str) -> None:
    name = alias or "omnipipeline"
    parent = build_parent(tmp_path, condition=f"{name}.enabled", **({"alias": alias} if alias else {}))
    assert [item["kind"] for item in helm.template({name: {"enabled": False}}, chart=parent)] == ["ConfigMap"]
    assert len(helm.template({name: {"enabled": True}}, chart=parent)) > 8
    assert len(helm.template({}, chart=parent)) > 8


def test_switched_off_without_a_condition_is_refused(helm: Helm) -> None:
    assert "enabled is false, but the parent chart has no condition" in helm.refusal_of({"enabled": False})


@pytest.mark.parametrize("is_parent", [True, False], ids=["parent", "alone"])
def test_globals_are_honoured(helm: Helm, tmp_path: Path, is_parent: bool) -> None:
    own = {"gateway": {"enabled": True}, "imagePullSecrets": [{"name": "own"}]}
    values = {"global": GLOBALS, "omnipipeline": own} if is_parent else {"global": GLOBALS, **own}
    manifests = helm.template(values, chart=build_parent(tmp_path) if is_parent else CHART)
    specs = pod_specs(manifests)
    assert len(specs) == 3
    for spec in specs:
        assert spec["imagePullSecrets"] == [{"name": "own"}, {"name": "one"}, {"name": "two"}]
        assert spec["containers"][0]["image"].startswith("mirror.example/all/omnipipeline-operator:")
    text = yaml.safe_dump(manifests)
    assert "mirror.example/all/omnipipeline-stage:" in text


def test_the_chart_s_own_registry_wins(helm: Helm) -> None:
    manifests = helm.template({"global": GLOBALS, "imageRegistry": "own.example"})
    assert pod_specs(manifests)[0]["containers"][0]["image"].startswith("own.example/omnipipeline-operator:")


@pytest.mark.parametrize(
    ("release", "values", "name"),
    [
        ("prod", {}, "prod-omnipipeline"),
        ("prod", {"nameOverride": "voice"}, "prod-voice"),
        ("voice-prod", {"nameOverride": "voice"}, "voice-prod"),
        ("prod", {"nameOverride": "voice", "fullnameOverride": "x"}, "x"),
    ],
)
def test_names(helm: Helm, release: str, values: dict[str, Any], name: str) -> None:
    names = {item["metadata"]["name"] for item in helm.template(values, release=release)}
    assert name in names


def test_additional_objects_are_templates(helm: Helm) -> None:
    extra = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "{{ .Release.Name }}-more"},
        "data": {"a": "1"},
    }
    found = pick_one(helm.template({"extraObjects": [extra, {**extra, "kind": "Secret"}]}, release="prod"), "Secret")
    assert (found["metadata"]["name"], found["data"]) == ("prod-more", {"a": "1"})


def test_the_gateway_takes_what_its_cluster_needs(helm: Helm) -> None:
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    gateway = {
        "enabled": True,
        "serviceAccountAnnotations": {"eks.amazonaws.com/role-arn": "arn"},
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/certs/ca.crt"}],
        "extraVolumes": [{"name": "certs", "configMap": {"name": "site-ca"}}],
        "extraVolumeMounts": [{"name": "certs", "mountPath": "/certs", "readOnly": True}],
        "affinity": affinity,
    }
    manifests = helm.template({"gateway": gateway})
    spec = pick_one(manifests, "Deployment", suffix="-gateway")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["env"][-1] == gateway["extraEnv"][0]
    assert container["volumeMounts"][-1] == gateway["extraVolumeMounts"][0]
    assert spec["volumes"][-1] == gateway["extraVolumes"][0]
    assert spec["affinity"] == affinity
    account = pick_one([item for item in manifests if item["metadata"]["name"].endswith("-gateway")], "ServiceAccount")
    assert account["metadata"]["annotations"] == gateway["serviceAccountAnnotations"]


@pytest.mark.parametrize(
    ("ingress", "hosts"),
    [
        ({}, [None]),
        ({"host": "a.example"}, ["a.example"]),
        ({"hosts": ["a.example", "b.example"]}, ["a.example", "b.example"]),
        ({"host": "a.example", "hosts": ["b.example", "a.example"]}, ["a.example", "b.example"]),
    ],
)
def test_hosts_of_the_ingress(helm: Helm, ingress: dict[str, Any], hosts: list[str | None]) -> None:
    gateway = {"enabled": True, "ingress": {"enabled": True, "tlsSecret": "certificate", **ingress}}
    spec = pick_one(helm.template({"gateway": gateway}), "Ingress")["spec"]
    assert [rule.get("host") for rule in spec["rules"]] == hosts
    assert spec["tls"][0].get("hosts", [None]) == hosts


def test_replicas_are_at_most_the_maximum(helm: Helm) -> None:
    gateway = {"enabled": True, "replicas": 3, "autoscaling": {"enabled": True, "maxReplicas": 2}}
    assert "must not exceed gateway.autoscaling.maxReplicas, which is 2" in helm.refusal_of({"gateway": gateway})


def test_the_chart_says_where_it_comes_from(helm: Helm) -> None:
    facts = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert {"icon", "home", "sources", "maintainers", "keywords", "annotations"} <= set(facts)
    said = helm.run("lint", "--strict", CHART).stdout
    assert "icon is recommended" not in said
