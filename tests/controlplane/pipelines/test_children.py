"""Every child on a real API server passes strict validation, is stored as written, and satisfies Pod Security.

The Pod Security level is `restricted`.
"""

from __future__ import annotations

import copy
import itertools
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_cli.commands.render import format_manifests, render_children
from omni_kube.matching import find_difference
from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import CHILD_KINDS
from omni_operator.rollout.decide import parse_live_pipeline
from omni_proto.pipeline import OmniPipeline, load_pipeline
from omni_proto.pipeline.read.offline import load_checked
from support.controlplane.binaries import find_binaries, gateway_api_crds
from support.controlplane.server.api import Api, ApiError
from support.controlplane.server.api_server import ApiServer
from support.controlplane.server.schemas import LOCATION, write_schemas
from support.operator.operator_pipelines import build_all, make_pipeline, make_single, make_stages, pick
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = sorted((ROOT / "manifests" / "samples").glob("*.yaml"))
POD_MONITOR_CRD = ROOT / "tests" / "support" / "controlplane" / "crds" / "pod_monitor_crd.yaml"
_numbers = itertools.count()
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}

EVERYTHING: dict[str, Any] = {
    "model": {"uri": "hf://org/model", "revision": "refs/pr/1", "tokenSecretRef": {"name": "hub"}},
    "defaults": {
        "image": "registry.example/stage:1",
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h100", "empty": ""},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "spot", "value": "true", "effect": "NoExecute", "tolerationSeconds": 0},
        ],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a", "b"]}]}
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
                ],
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "podAffinityTerm": {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}}
                ]
            },
        },
        "priorityClassName": "serving",
        "podLabels": {"team": "speech", "blank": ""},
        "podAnnotations": {"example.com/note": "kept"},
        "topology": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2}],
        "imagePullPolicy": "Always",
        "env": [
            {"name": "EMPTY"},
            {"name": "ALSO_EMPTY", "value": ""},
            {"name": "PROXY", "value": "http://proxy:3128"},
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b", "optional": False}}},
            {"name": "LEVEL", "valueFrom": {"configMapKeyRef": {"name": "a", "key": "b"}}},
            {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        ],
        "envFrom": [{"prefix": "A_", "configMapRef": {"name": "a", "optional": True}}, {"secretRef": {"name": "a"}}],
        "volumes": [
            {"name": "a", "configMap": {"name": "a", "items": [{"key": "a", "path": "b/c", "mode": 256}]}},
            {"name": "b", "secret": {"secretName": "a", "defaultMode": 288, "optional": True}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "a"}},
            {"name": "d", "csi": {"driver": "a.example", "volumeAttributes": {"a": ""}}},
        ],
        "volumeMounts": [{"name": name, "mountPath": f"/data/{name}", "readOnly": True} for name in "abcd"],
        "serviceAccountName": "models",
        "podSecurityContext": {"runAsUser": 7, "runAsGroup": 8, "fsGroup": 9, "supplementalGroups": [10]},
        "schedulerName": "volcano",
        "resourceClaims": [{"name": "a", "resourceClaimName": "a"}, {"name": "b", "resourceClaimTemplateName": "b"}],
        "podDisruptionBudget": {"minAvailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
        "shmSize": "1024Mi",
        "startupSeconds": 61,
        "terminationGracePeriodSeconds": 99,
    },
    "entry": {
        "service": {"type": "LoadBalancer", "loadBalancerClass": "example.com/lb", "annotations": {"a": ""}},
        "route": {"ingress": {"host": "*.example.com"}, "annotations": {"a": ""}},
    },
    "timeouts": {"request": 12.5},
    "rollout": {"maxSurge": "25%", "maxUnavailable": 1},
}
RESOURCES = {
    "limits": {"nvidia.com/gpu": 2, "memory": "1024Mi", "cpu": "3000m", "ephemeral-storage": "1.5Gi"},
    "requests": {"cpu": "0.5"},
    "claims": [{"name": "a"}, {"name": "b", "request": "big"}],
}

PARENTS = [
    {"name": "a", "namespace": "b", "sectionName": "c"},
    {"name": "a", "namespace": "b", "sectionName": "d", "port": 443},
]
BACKEND_TLS = {"hostname": "a.example", "caCertificateRefs": [{"name": "a"}, {"kind": "Secret", "name": "a"}]}
PIPELINES = {
    **{sample.stem: load_pipeline(sample) for sample in SAMPLES},
    "everything": make_pipeline(
        [{**stage, "replicas": 2, "resources": RESOURCES} for stage in make_stages()], **EVERYTHING
    ),
    "claim": make_single(spec={"model": {"uri": "pvc://models/qwen"}}),
    "shared cache": make_single(
        spec={"model": {"uri": "hf://org/model", "cache": {"persistentVolumeClaim": "models"}}}
    ),
    "suspended": make_single(replicas=0, spec={"suspend": True}),
    "routed": make_single(
        spec={"entry": {"route": {"gatewayApi": {"parentRefs": PARENTS, "hostnames": ["a.example", "*.b.example"]}}}}
    ),
    "routed with TLS to the entry": make_single(
        spec={
            "entry": {
                "tls": {"secretName": "a"},
                "route": {"gatewayApi": {"parentRefs": PARENTS, "backendTls": BACKEND_TLS}},
            }
        }
    ),
    "routed by HTTP": make_single(
        spec={"entry": {"route": {"gatewayApi": {"kind": "HTTPRoute", "parentRefs": [{"name": "a"}]}}}}
    ),
    "routed by an Ingress": make_single(
        spec={"entry": {"route": {"ingress": {"ingressClassName": "a", "host": "a.example", "tlsSecretName": "a"}}}}
    ),
    "mirror": make_single(spec={"model": {"uri": "hf://org/model"}}),
}
SETTINGS = BuildSettings(
    default_image="stage:1", pod_monitors=True, image_pull_policy="IfNotPresent", hub_endpoint="http://hub.svc:8080"
)


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    """Returns the API server, with the CRDs of PodMonitors and of the Gateway API's routes."""
    api_server.apply_crds(POD_MONITOR_CRD, *gateway_api_crds())
    return api_server


@pytest.fixture
def namespace(server: ApiServer) -> Api:
    return make_namespace(server)


def make_namespace(server: ApiServer) -> Api:
    """Returns a client in a new namespace that enforces Pod Security `restricted` and warns of violations."""
    return server.create_namespace(f"children-{next(_numbers)}", labels=RESTRICTED)


def children_in(api: Api, pipeline: OmniPipeline) -> list[dict[str, Any]]:
    """Returns the children, moved to the namespace. Their owner does not exist, but no garbage collector runs here."""
    children = copy.deepcopy(build_all(pipeline, SETTINGS))
    for child in children:
        child["metadata"]["namespace"] = api.namespace
    return children


def test_children_are_accepted_strictly_and_kept_as_written(server: ApiServer, subtests: pytest.Subtests) -> None:
    """The server does not reject, drop or rewrite any field. Otherwise every resync would write."""
    for name, pipeline in PIPELINES.items():
        namespace = make_namespace(server)
        with subtests.test(name):
            for child in children_in(namespace, pipeline):
                live = namespace.apply(child, strict=True)
                assert find_difference(child, live) is None
                again = namespace.apply(child, strict=True)
                assert again["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]


def test_restricted_namespaces_admit_pods_without_a_warning(server: ApiServer, subtests: pytest.Subtests) -> None:
    for name, pipeline in PIPELINES.items():
        namespace = make_namespace(server)
        children = children_in(namespace, pipeline)
        namespace.apply(pick(children, "ServiceAccount"))
        deployments = [child for child in children if child["kind"] == "Deployment"]
        manifests = [*deployments, *map(pod_of, deployments)]
        with subtests.test(name):
            # kubectl prints the server's warnings.
            flags = ("--server-side", "--dry-run=server", "-f", "-")
            text = yaml.safe_dump_all(manifests)
            result = server.kubectl("apply", *flags, stdin=text, namespace=namespace.namespace)
            assert "Warning" not in result.stderr
            assert len(result.stdout.splitlines()) == len(manifests)


def pod_of(deployment: dict[str, Any]) -> dict[str, Any]:
    """Returns a pod as the Deployment's controller would make it."""
    template = deployment["spec"]["template"]
    metadata = {"name": deployment["metadata"]["name"], **template["metadata"]}
    spec = {key: value for key, value in template["spec"].items() if key not in CLUSTER_SCOPED}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


CLUSTER_SCOPED = ("runtimeClassName", "priorityClassName")
"""Fields of a pod that name objects which admission looks up. Those objects do not exist here."""


def test_the_namespace_does_enforce_and_warn(server: ApiServer, namespace: Api) -> None:
    """A pod that violates `restricted` is rejected here, and its Deployment causes a warning.

    So the test above can fail.
    """
    children = children_in(namespace, make_single())
    namespace.apply(pick(children, "ServiceAccount"))
    deployment = pick(children, "Deployment")
    template = deployment["spec"]["template"]
    del template["spec"]["securityContext"]["seccompProfile"]
    metadata = {"name": "p", **template["metadata"]}
    with pytest.raises(ApiError, match="seccompProfile"):
        namespace.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
    result = server.kubectl("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=deployment)
    assert "Warning: would violate PodSecurity" in result.stderr


def test_a_snapshot_cannot_be_changed_so_another_spec_is_another_object(namespace: Api) -> None:
    """The data of a ControllerRevision is immutable. Another spec gets another ControllerRevision."""
    first = pick(children_in(namespace, make_single()), "ControllerRevision")
    namespace.apply(first)
    changed = {**first, "data": {"spec": {}}}
    with pytest.raises(ApiError, match="immutable"):
        namespace.apply(changed)
    assert namespace.apply({**first, "revision": 9})["revision"] == 9
    second = pick(children_in(namespace, make_single(limits={"maxConcurrentRequests": 2})), "ControllerRevision")
    namespace.apply(second)
    assert len(namespace.list("ControllerRevision")) == 2


def test_a_config_map_cannot_be_changed(namespace: Api) -> None:
    config_map = pick(children_in(namespace, make_single()), "ConfigMap")
    namespace.apply(config_map)
    with pytest.raises(ApiError, match="immutable"):
        namespace.apply({**config_map, "data": {"stage.yaml": "other"}})


def render(pipeline: OmniPipeline) -> str:
    return format_manifests(render_children(pipeline, "default", SETTINGS))


def test_render_prints_offline_what_the_api_servers_defaults_lead_to(namespace: Api, subtests: pytest.Subtests) -> None:
    for sample in SAMPLES:
        with subtests.test(sample.stem):
            live = namespace.apply(yaml.safe_load(sample.read_text()), strict=True)
            assert render(parse_live_pipeline(live)) == render(load_checked(sample))


@pytest.mark.parametrize("name", ["namespaced", "cluster"])
def test_roles_are_accepted(server: ApiServer, name: str) -> None:
    for document in yaml.safe_load_all((ROOT / "manifests" / "rbac" / f"{name}.yaml").read_text()):
        namespace = document["metadata"].get("namespace")
        if namespace and server.admin.find("Namespace", namespace) is None:
            server.create_namespace(namespace)
        server.admin.apply(document, dry_run=True, strict=True)


class TestKubeconform:
    """The samples' objects satisfy schemas of the pinned Kubernetes version that allow no unknown fields."""

    @pytest.fixture(scope="class")
    def schemas(self, server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
        directory = tmp_path_factory.mktemp("schemas")
        write_schemas(server.admin, directory, [(kind.api_version, kind.kind) for kind in CHILD_KINDS])
        return directory

    def check(self, schemas: Path, text: str) -> subprocess.CompletedProcess[str]:
        program = find_binaries("kubeconform")["kubeconform"]
        command = [str(program), "-strict", "-summary", "-schema-location", str(schemas / LOCATION), "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    def test_samples(self, schemas: Path) -> None:
        text = "---\n".join(render(load_checked(sample)) for sample in SAMPLES)
        result = self.check(schemas, text)
        assert result.returncode == 0, result.stdout + result.stderr
        count = len([document for document in yaml.safe_load_all(text) if document])
        assert f"Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0" in result.stdout

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            pytest.param("terminationGracePeriodSeconds:", "terminationGracePeriod:", id="unknown field"),
            pytest.param("automountServiceAccountToken: false", "automountServiceAccountToken: 'no'", id="type"),
        ],
    )
    def test_it_would_find_a_mistake(self, schemas: Path, old: str, new: str) -> None:
        text = render(load_checked(SAMPLES[0]))
        assert old in text
        assert self.check(schemas, text.replace(old, new)).returncode != 0
