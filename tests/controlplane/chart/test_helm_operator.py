"""The chart's operator has the RBAC rules of the plain manifests, and the chart's values reach its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from omni_operator.process.settings import OperatorSettings, parse_settings
from support.controlplane.charts.chart_variants import EVERYTHING, VARIANTS
from support.controlplane.charts.helm import (
    NAMESPACE,
    RELEASE,
    ROOT,
    Helm,
    Manifest,
    operator_process,
    pick_one,
    pick_operators,
)

pytestmark = pytest.mark.controlplane
RBAC = ROOT / "manifests" / "rbac"


def role_rules(file: str, kind: str) -> list[Any]:
    """Returns the plain manifests' rules for pipelines and children, and those for the Lease."""
    documents = list(yaml.safe_load_all((RBAC / file).read_text()))
    return [
        pick_one(documents, kind, suffix="omnipipeline-operator")["rules"],
        pick_one(documents, "Role", suffix="-lease")["rules"],
    ]


@pytest.mark.parametrize(
    ("values", "file", "kind"),
    [({}, "cluster.yaml", "ClusterRole"), ({"watchNamespaces": ["team-a"]}, "namespaced.yaml", "Role")],
    ids=["cluster", "namespaced"],
)
def test_rights_are_those_of_the_plain_manifests(helm: Helm, values: Mapping[str, Any], file: str, kind: str) -> None:
    manifests = helm.template({"fullnameOverride": "omnipipeline-operator", **values})
    rendered = [
        pick_one(manifests, kind, suffix="omnipipeline-operator")["rules"],
        pick_one(manifests, "Role", suffix="-lease")["rules"],
    ]
    assert rendered == role_rules(file, kind)


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"metrics": {"podMonitors": {"enabled": False}}}, [["podmonitors"]]),
        (
            {"operator": {"forbiddenFields": ["env", "entry.route"]}},
            [["ingresses"], ["grpcroutes", "httproutes", "backendtlspolicies"]],
        ),
    ],
    ids=["PodMonitors", "routes"],
)
def test_rights_go_with_their_switch(helm: Helm, values: Mapping[str, Any], gone: list[list[str]]) -> None:
    """Disabling PodMonitors removes the RBAC rule for podmonitors, and no other rule; forbidding routes likewise."""
    full = pick_one(helm.template(), "ClusterRole", suffix="-omnipipeline")["rules"]
    less = pick_one(helm.template(values), "ClusterRole", suffix="-omnipipeline")["rules"]
    assert [rule["resources"] for rule in full if rule not in less] == gone


def test_every_watched_namespace_gets_a_role(helm: Helm) -> None:
    manifests = helm.template({"watchNamespaces": ["team-a", "team-b"]})
    bindings = [item for item in manifests if item["kind"] == "RoleBinding" and item["roleRef"]["name"] == RELEASE]
    assert [item["metadata"]["namespace"] for item in bindings] == ["team-a", "team-b"]
    assert {subject["namespace"] for item in bindings for subject in item["subjects"]} == {NAMESPACE}


def settings_of(manifests: list[Manifest]) -> OperatorSettings:
    """Returns the settings that the operator reads from the pod's command and environment."""
    command, environment = operator_process(pick_operators(manifests, "Deployment"))
    assert command[:3] == ["python", "-m", "omni_operator"]
    return parse_settings(command[3:], environment)


def test_the_operator_understands_its_command_line(helm: Helm, subtests: pytest.Subtests) -> None:
    """The operator's settings match the Role for its Lease and the ports of its container."""
    for name, values in VARIANTS.items():
        with subtests.test(name):
            manifests = helm.template(values)
            settings = settings_of(manifests)
            roles = [item for item in manifests if item["kind"] == "Role"]
            leases = [item for item in roles if item["metadata"]["name"].endswith("-lease")]
            assert len(leases) == (name != "nothing optional")
            for role in leases:
                assert [settings.lease_name] in [rule.get("resourceNames") for rule in role["rules"]]
            ports = pick_operators(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"]
            assert [port["containerPort"] for port in ports] == [settings.health_port, settings.metrics_port]


def test_every_value_reaches_the_operator(helm: Helm) -> None:
    settings = settings_of(helm.template(EVERYTHING))
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.default_image == f"registry.example:5000/mirror/omnipipeline-stage@sha256:{'0' * 64}"
    assert settings.image_pull_policy == "Never"
    assert settings.cluster_domain == "example.local"
    assert settings.hub_endpoint == "https://hub.example:8443/hf"
    assert settings.otlp_endpoint == "http://collector.observability.svc:4317"
    assert (settings.log_format, settings.log_level) == ("text", "debug")
    assert (settings.api_qps, settings.workers, settings.resync_s, settings.debounce_s) == (50, 2, 60, 0.1)
    assert (settings.lease_name, settings.lease_duration_s) == ("omni", 30)
    assert settings.pod_monitors
    assert dict(settings.pod_monitor_labels) == {"release": "prometheus", "example.com/team": "speech"}


def test_the_values_defaults_are_the_operators(helm: Helm) -> None:
    """For these settings, the chart's default values are the operator's own defaults."""
    own, charted = OperatorSettings(), settings_of(helm.template())
    for name in (
        "namespaces",
        "cluster_domain",
        "hub_endpoint",
        "otlp_endpoint",
        "pod_monitors",
        "log_format",
        "log_level",
        "api_qps",
    ):
        assert getattr(charted, name) == getattr(own, name), name
    assert (charted.workers, charted.resync_s, charted.lease_duration_s) == (
        own.workers,
        own.resync_s,
        own.lease_duration_s,
    )
