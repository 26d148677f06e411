"""Values that the programs would refuse are refused by Helm, and null means "not set"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_gateway.settings import GatewaySettings, load_settings
from support.controlplane.charts.helm import CHART, RELEASE, Helm, pick_one
from support.controlplane.server.api_server import ApiServer

pytestmark = pytest.mark.controlplane

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"operator": {"workers": 100}}, "at '/operator/workers': maximum: got 100, want 64"),
    ({"operator": {"maxPipelinesPerNamespace": 1_000_000}}, "at '/operator/maxPipelinesPerNamespace': maximum"),
    ({"operator": {"resyncSeconds": 90_000}}, "at '/operator/resyncSeconds': maximum"),
    ({"operator": {"leaseDurationSeconds": 301}}, "at '/operator/leaseDurationSeconds': maximum"),
    ({"operator": {"apiQps": 200_000}}, "at '/operator/apiQps': maximum"),
    ({"clusterDomain": "x" * 254}, "at '/clusterDomain'"),
    ({"tracing": {"otlpEndpoint": "http://a:70000"}}, "at '/tracing/otlpEndpoint'"),
    ({"metrics": {"podMonitors": {"labels": {"a b": "c"}}}}, "at '/metrics/podMonitors/labels'"),
    ({"metrics": {"podMonitors": {"labels": {"a": "b,c"}}}}, "at '/metrics/podMonitors/labels/a'"),
    ({"podLabels": {"a": "b c"}}, "at '/podLabels/a'"),
    ({"gateway": {"settings": {"corsOrigin": ["x"]}}}, "'corsOrigin' not allowed"),
    ({"gateway": {"settings": {"maxRequests": 0}}}, "at '/gateway/settings/maxRequests'"),
    ({"gateway": {"settings": {"media": {"maxItems": 65}}}}, "at '/gateway/settings/media/maxItems'"),
    ({"gateway": {"settings": {"keysFile": "/x"}}}, "'keysFile' not allowed"),
    ({"gateway": {"settings": {"modelAliases": {"a": "b"}}}}, "'modelAliases' not allowed"),
    ({"gateway": {"service": {"port": 70_000}}}, "at '/gateway/service/port': maximum"),
    (
        {"gateway": {"enabled": True, "replicas": 10, "autoscaling": {"enabled": True}}},
        "gateway.replicas is 10, the minimum with gateway.autoscaling.enabled, and must not exceed "
        "gateway.autoscaling.maxReplicas, which is 8",
    ),
    (
        {"gateway": {"enabled": True, "resources": {"requests": None}, "autoscaling": {"enabled": True}}},
        "gateway.resources.requests has no cpu; set it",
    ),
    ({"imageRegistry": "https://r.example"}, "https://r.example/omnipipeline-operator is not a name of an image"),
    ({"global": {"imageRegistry": "r.example/A"}}, "r.example/A/omnipipeline-operator is not a name of an image"),
    ({"stageImage": {"repository": "stage:1"}}, "stage:1 is not a name of an image"),
    # The API server takes any name of a Secret that a volume mounts, and the pod would never start.
    ({"gateway": {"keysSecret": "My_Keys"}}, "at '/gateway/keysSecret': 'My_Keys' does not match"),
    ({"gateway": {"ingress": {"tlsSecret": "My_Keys"}}}, "at '/gateway/ingress/tlsSecret'"),
    ({"gateway": {"ingress": {"host": "https://a.example"}}}, "at '/gateway/ingress/host'"),
    ({"gateway": {"networkPolicy": {"apiServerPorts": [70_000]}}}, "apiServerPorts/0': maximum"),
    ({"serviceAccount": {"name": "Operator"}}, "at '/serviceAccount/name'"),
    ({"podLabels": {"app.kubernetes.io/instance": "x"}}, "podLabels must not contain app.kubernetes.io/instance"),
    ({"commonLabels": {"omnipipeline.io/installation": "x"}}, "commonLabels must not contain omnipipeline.io/inst"),
]


def test_values_that_would_end_a_program_are_refused(helm: Helm, subtests: pytest.Subtests) -> None:
    for values, says in REFUSED:
        with subtests.test(says):
            assert says in helm.refusal_of(values)


def stringified(values: dict[str, Any], path: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns the numbers and switches as `--set-string` gives them, and their paths."""
    changed, paths = {}, []
    for key, value in values.items():
        if isinstance(value, dict):
            changed[key], below = stringified(value, f"{path}/{key}")
            paths += below
        elif isinstance(value, bool | int):
            changed[key] = str(value).lower()
            paths.append(f"{path}/{key}")
    return changed, paths


def test_a_number_or_switch_from_set_string_is_refused_by_its_path(helm: Helm) -> None:
    """In a template "false" is true, and "2" is larger than 10."""
    values, paths = stringified(DEFAULTS)
    said = helm.refusal_of(values)
    # The API server refuses wrong security contexts: the chart passes any of their fields.
    ours = [path for path in paths if "ecurityContext" not in path]
    assert len(ours) > 20
    assert [path for path in ours if f"at '{path}': got string, want" not in said] == []


def test_every_setting_of_the_gateway_is_known_to_the_chart() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    known = set(schema["properties"]["gateway"]["properties"]["settings"]["properties"])
    names = {str(field.alias) for field in GatewaySettings.model_fields.values()}
    assert names - known == {"keysFile", "entryCa", "entryCertificate", "entryKey", "modelAliases"}
    assert known <= names


def test_large_numbers_and_nulls_reach_the_gateway(helm: Helm, tmp_path: Path) -> None:
    """Helm writes large numbers as 4.8e+07, which YAML 1.1 reads as text unless it has a point."""
    given = {"maxBodyBytes": 50_000_000, "maxHeldBytes": 1 << 39, "drainSeconds": None, "media": None}
    manifests = helm.template({"gateway": {"enabled": True, "settings": given | {"sendSeconds": 1.5}}})
    path = tmp_path / "gateway.yaml"
    path.write_text(pick_one(manifests, "ConfigMap", suffix="-gateway")["data"]["gateway.yaml"])
    settings = load_settings(path)
    assert (settings.max_body_bytes, settings.max_held_bytes, settings.send_seconds) == (50_000_000, 1 << 39, 1.5)
    assert settings.drain_seconds == GatewaySettings().drain_seconds


def test_annotations_of_the_user_replace_the_charts_own(helm: Helm) -> None:
    own = {"kubectl.kubernetes.io/default-container": "proxy", "a": "b"}
    manifests = helm.template({"podAnnotations": own, "gateway": {"enabled": True, "podAnnotations": own}})
    deployments = [manifest for manifest in manifests if manifest["kind"] == "Deployment"]
    assert len(deployments) == 2
    for deployment in deployments:
        assert own.items() <= deployment["spec"]["template"]["metadata"]["annotations"].items()


def test_large_numbers_of_pods_stay_whole(helm: Helm) -> None:
    scaling = {"enabled": True, "maxReplicas": 1_000_000}
    manifests = helm.template({"gateway": {"enabled": True, "replicas": 1_000_000, "autoscaling": scaling}})
    container = pick_one(manifests, "Deployment", suffix="-gateway")["spec"]["template"]["spec"]["containers"][0]
    assert "--replicas=1000000" in container["args"]
    spec = pick_one(manifests, "HorizontalPodAutoscaler")["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (1_000_000, 1_000_000)


EMPTY_IF_NULL = {
    *("resources", "podSecurityContext", "securityContext", "metrics.dashboards.labels"),
    *("gateway.resources", "gateway.networkPolicy.apiServerPorts"),
}
"""Maps and lists with defaults: null removes the default. Of all other values, null leaves it."""
SWITCHED_ON: dict[str, dict[str, Any]] = {
    "default": {},
    "gateway": {
        "gateway": {"enabled": True, "autoscaling": {"enabled": True}, "ingress": {"enabled": True}},
        "metrics": {"serviceMonitor": {"enabled": True}},
    },
    "metrics": {
        "metrics": {
            "serviceMonitor": {"enabled": True},
            "prometheusRule": {"enabled": True},
            "dashboards": {"enabled": True},
        },
        "replicas": 2,
    },
}


def with_nulls(values: dict[str, Any], depth: int, prefix: str = "") -> dict[str, Any]:
    """Returns the values with null at the given depth, without the lists and maps that null would empty."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and depth and value and path not in EMPTY_IF_NULL:
            changed[key] = with_nulls(value, depth - 1, f"{path}.")
        elif not any(item.startswith(path) for item in EMPTY_IF_NULL):
            changed[key] = None
    return changed


@pytest.mark.parametrize("name", SWITCHED_ON)
def test_null_leaves_every_default(helm: Helm, name: str, subtests: pytest.Subtests) -> None:
    for depth in range(4):
        with subtests.test(f"depth {depth}"):
            values = merge(with_nulls(DEFAULTS, depth), SWITCHED_ON[name])
            assert helm.template(values) == helm.template(SWITCHED_ON[name])


def test_null_removes_a_list_or_map(helm: Helm, subtests: pytest.Subtests) -> None:
    on = {"gateway": {"enabled": True}, "metrics": {"dashboards": {"enabled": True}}}
    for path in sorted(EMPTY_IF_NULL):
        values: Any = None
        for key in reversed(path.split(".")):
            values = {key: values}
        with subtests.test(path):
            assert helm.template(merge(on, values)) != helm.template(on)


def merge(one: Any, other: Any) -> Any:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return other
    return one | {key: merge(one[key], value) if key in one else value for key, value in other.items()}


def test_switching_autoscaling_on_and_off_keeps_the_gateways_pods(api_server: ApiServer, tmp_path: Path) -> None:
    """Without the field in the new manifest, Helm would remove `replicas`, and the API server would fill in 1."""
    api = api_server.create_namespace("autoscaled")
    helm = Helm(tmp_path, api_server.kubeconfig)

    def upgrade(replicas: int, enabled: bool) -> int:
        values = {
            "crds": {"install": False},
            "gateway": {"enabled": True, "replicas": replicas, "autoscaling": {"enabled": enabled}},
        }
        helm.run("upgrade", "--install", RELEASE, CHART, "--namespace", api.namespace, values=values)
        return int(api.get("Deployment", f"{RELEASE}-gateway")["spec"]["replicas"])

    assert upgrade(4, enabled=False) == 4
    assert upgrade(2, enabled=True) == 4
    api.patch("Deployment", f"{RELEASE}-gateway", {"spec": {"replicas": 7}})  # as the HorizontalPodAutoscaler does
    assert upgrade(3, enabled=True) == 7
    assert upgrade(5, enabled=False) == 5
