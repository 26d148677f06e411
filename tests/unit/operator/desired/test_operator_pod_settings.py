"""What the resource sets of a pod: variables, volumes, users, devices, limits of time; and the names that are ours."""

from __future__ import annotations

from typing import Any

import pytest

from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_shared
from omni_operator.desired.revision import compute_revision
from omni_proto.pipeline.types.entry import Entry, EntryService
from omni_proto.pipeline.types.pods import (
    RESERVED_PREFIX,
    RESERVED_TREES,
    RESERVED_VARIABLES,
    RESERVED_VOLUMES,
    PodSettings,
)
from support.operator.operator_pipelines import GPU, build_all, make_pipeline, make_single, make_stages, pick, pod_spec
from support.operator.pod_templates import HUB, all_containers, env_of

ENV = [
    {"name": "HTTPS_PROXY", "value": "http://proxy:3128"},
    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "tokens", "key": "hub", "optional": False}}},
    {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
]
VOLUMES: list[dict[str, Any]] = [
    {"name": "ca", "configMap": {"name": "ca", "optional": False}},
    {"name": "voices", "persistentVolumeClaim": {"claimName": "voices", "readOnly": True}},
    {"name": "vault", "csi": {"driver": "vault.example", "readOnly": True, "volumeAttributes": {"a": "b"}}},
    {"name": "adapters", "image": {"reference": "registry.example/adapters:1"}},
]
MOUNTS = [{"name": "ca", "mountPath": "/etc/ssl/own"}, {"name": "voices", "mountPath": "/data", "subPath": "en"}]


def test_variables_reach_the_download_and_the_stage_server() -> None:
    """The download needs a proxy and its certificates too."""
    pipeline = make_single(env=ENV, envFrom=[{"prefix": "A_", "secretRef": {"name": "app"}}], spec=HUB)
    for container in all_containers(pod_spec(build_all(pipeline))):
        assert container["env"][-3:] == ENV
        assert container["envFrom"] == [{"prefix": "A_", "secretRef": {"name": "app", "optional": False}}]


def test_only_the_number_of_threads_can_be_replaced() -> None:
    """OMP_NUM_THREADS is a choice of ours, which a user may make better; it is in the container once."""
    resources = {"limits": {"cpu": 4}}
    pipeline = make_single(env=[{"name": "OMP_NUM_THREADS", "value": "2"}], resources=resources)
    (container,) = pod_spec(build_all(pipeline))["containers"]
    assert [item for item in container["env"] if item["name"] == "OMP_NUM_THREADS"] == [
        {"name": "OMP_NUM_THREADS", "value": "2"}
    ]


def test_every_name_that_the_operator_sets_is_reserved() -> None:
    """Variables, volumes and mounts of any pod of ours, with a mirror, a token, a certificate and a collector."""
    settings = BuildSettings(hub_endpoint="https://hub.example", otlp_endpoint="http://collector:4317")
    model = {"uri": "hf://org/model", "tokenSecretRef": {"name": "token"}}
    spec = pod_spec(
        build_all(
            make_single(
                resources={"limits": {"cpu": 4}},
                compileCache={"claimName": "kernels"},
                spec={"model": model, "entry": {"tls": {"secretName": "tls"}}},
            ),
            settings,
        )
    )
    names = {item["name"] for container in all_containers(spec) for item in container["env"]} - {"OMP_NUM_THREADS"}
    assert {name for name in names if not name.startswith(RESERVED_PREFIX)} == set(RESERVED_VARIABLES)
    assert {volume["name"] for volume in spec["volumes"]} == set(RESERVED_VOLUMES)
    paths = {mount["mountPath"] for container in all_containers(spec) for mount in container["volumeMounts"]}
    assert {path for path in paths if not path.startswith(RESERVED_TREES)} == set()


def test_volumes_are_read_only_in_every_container() -> None:
    spec = pod_spec(build_all(make_single(volumes=VOLUMES, volumeMounts=MOUNTS, spec=HUB)))
    assert spec["volumes"][-4:] == VOLUMES
    for container in all_containers(spec):
        found = [mount for mount in container["volumeMounts"] if mount["name"] in ("ca", "voices")]
        assert found == [{**mount, "readOnly": True} for mount in MOUNTS]


def test_compiled_code_is_shared_by_the_stage_server_only() -> None:
    """The download compiles nothing, and the claim is mounted writable."""
    spec = pod_spec(build_all(make_single(compileCache={"claimName": "kernels"}, spec=HUB)))
    assert {"name": "compile-cache", "persistentVolumeClaim": {"claimName": "kernels"}} in spec["volumes"]
    fetch, stage = spec["initContainers"][0], spec["containers"][0]
    assert {"name": "compile-cache", "mountPath": "/compile-cache"} in stage["volumeMounts"]
    assert env_of(stage)["OMNI_COMPILE_CACHE"] == "/compile-cache"
    assert "OMNI_COMPILE_CACHE" not in env_of(fetch)
    assert "compile-cache" not in {mount["name"] for mount in fetch["volumeMounts"]}


def test_a_stage_mounts_a_volume_of_all_stages() -> None:
    pipeline = make_single(volumeMounts=MOUNTS, spec={"defaults": {"volumes": VOLUMES}})
    spec = pod_spec(build_all(pipeline))
    assert spec["volumes"][-4:] == VOLUMES
    assert spec["containers"][0]["volumeMounts"][-2]["mountPath"] == "/etc/ssl/own"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"runAsUser": 7}, {"runAsUser": 7}),
        ({"fsGroup": 8}, {"fsGroup": 8, "fsGroupChangePolicy": "OnRootMismatch"}),
        ({"fsGroup": 8, "fsGroupChangePolicy": "Always"}, {"fsGroup": 8, "fsGroupChangePolicy": "Always"}),
        ({"supplementalGroups": [5]}, {"supplementalGroups": [5]}),
    ],
    ids=str,
)
def test_users_and_groups_replace_ours_and_pods_stay_restricted(given: Any, expected: Any) -> None:
    """An empty podSecurityContext leaves them to the platform. OpenShift refuses ids outside of a namespace's range."""
    security = pod_spec(build_all(make_single(podSecurityContext=given)))["securityContext"]
    assert security == {"runAsNonRoot": True, **expected, "seccompProfile": {"type": "RuntimeDefault"}}


def test_sizes_and_times_of_the_resource() -> None:
    pipeline = make_single(shmSize="8Gi", startupSeconds=5401, resources=GPU)
    deployment = pick(build_all(pipeline), "Deployment")["spec"]
    spec = deployment["template"]["spec"]
    shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
    assert shm["emptyDir"]["sizeLimit"] == "8Gi"
    probe = spec["containers"][0]["startupProbe"]
    assert probe["failureThreshold"] * probe["periodSeconds"] == 5402
    assert deployment["progressDeadlineSeconds"] == 900 + 5401


def test_a_claim_of_devices_is_a_device() -> None:
    """A stage with a claim has the start limit of one GPU, and only its own container uses the claim."""
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    resources = {"limits": {"cpu": 4}, "claims": [{"name": "gpu", "request": "big"}]}
    spec = pod_spec(build_all(make_single(resourceClaims=claims, resources=resources, spec=HUB)))
    assert spec["resourceClaims"] == claims
    (stage,) = spec["containers"]
    assert stage["resources"]["claims"] == resources["claims"]
    assert "claims" not in spec["initContainers"][0]["resources"]
    assert stage["startupProbe"]["failureThreshold"] * stage["startupProbe"]["periodSeconds"] == 1800
    assert "OMP_NUM_THREADS" not in env_of(stage)


@pytest.mark.parametrize(
    ("replicas", "given", "expected"),
    [
        (2, None, {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        (1, {"maxUnavailable": 0}, {"maxUnavailable": 0, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        (4, {"minAvailable": "50%"}, {"minAvailable": "50%", "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
        (
            2,
            {"unhealthyPodEvictionPolicy": "IfHealthyBudget"},
            {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
        ),
    ],
)
def test_disruption_budget(replicas: int, given: Any, expected: Any) -> None:
    setting = {} if given is None else {"podDisruptionBudget": given}
    budget = pick(build_all(make_single(replicas=replicas, **setting)), "PodDisruptionBudget")["spec"]
    assert {key: value for key, value in budget.items() if key != "selector"} == expected


def test_entry_service() -> None:
    given = EntryService(type="LoadBalancer", load_balancer_class="example.com/lb", annotations={"example.com/a": "b"})
    _, headless, entry = build_shared(Owner("demo", "ns"), "abc1234", entry=Entry(service=given))
    assert (entry["spec"]["type"], entry["spec"]["loadBalancerClass"]) == ("LoadBalancer", "example.com/lb")
    assert entry["metadata"]["annotations"]["example.com/a"] == "b"
    assert headless["spec"]["clusterIP"] == "None"
    assert "example.com/a" not in headless["metadata"]["annotations"]


def test_pod_settings_change_no_revision() -> None:
    """All of them are rolled out in place, because pods with and without them understand one another."""
    plain = compute_revision(make_pipeline(), "stage:1")
    settings = {"env": ENV, "volumes": VOLUMES, "volumeMounts": MOUNTS, "serviceAccountName": "a", "shmSize": "8Gi"}
    stages = [{**stage, **settings} for stage in make_stages()]
    assert compute_revision(make_pipeline(stages, defaults=settings), "stage:1") == plain


def test_the_table_of_settings_is_complete() -> None:
    """Each setting has a test above, in test_operator_placement.py or in test_operator_pod_template.py."""
    assert set(PodSettings.model_fields) == {
        *("image", "image_pull_policy", "image_pull_secrets", "env", "env_from", "volumes", "volume_mounts"),
        *("service_account_name", "pod_security_context", "scheduler_name", "runtime_class_name", "resource_claims"),
        *("node_selector", "tolerations", "affinity", "priority_class_name", "pod_labels", "pod_annotations"),
        *("topology", "pod_disruption_budget", "shm_size", "startup_seconds", "termination_grace_period_seconds"),
        "compile_cache",
    }
