"""The pod template: Pod Security `restricted`, nothing written to the root, probes, model files, placement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.children.deployment import USER_ID
from omni_operator.desired.pod.placement import drop_empty
from omni_operator.desired.pod.probes import build_probes, startup_seconds
from omni_proto.pod_contract import TERMINATION_LOG_VARIABLE
from omni_proto.stage_config import Listen, ServerTls, parse_stage_config
from omni_stage.__main__ import _parser
from omni_stage.models.registry import weight_prefixes
from omni_stage.service.server.health import LIVENESS, READINESS
from support.operator_pipelines import (
    GPU,
    SETTINGS,
    Spec,
    build_all,
    make_pipeline,
    make_single,
    make_stages,
    pick,
    pod_spec,
)

HUB: Spec = {"model": {"uri": "hf://org/model", "tokenSecretRef": {"name": "hub", "key": "token"}}}
PVC: Spec = {"model": {"uri": "pvc://models/qwen/omni"}}


def all_containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


def env_of(container: dict[str, Any]) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container["env"]}


class TestSecurity:
    """Pod Security `restricted`, and less."""

    SPEC = pod_spec(build_all(make_single(spec=HUB)))

    def test_pod(self) -> None:
        security = self.SPEC["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == USER_ID == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert self.SPEC["automountServiceAccountToken"] is False
        assert self.SPEC["enableServiceLinks"] is False
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(self.SPEC)

    @pytest.mark.parametrize("container", all_containers(SPEC), ids=lambda container: str(container["name"]))
    def test_containers(self, container: dict[str, Any]) -> None:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["terminationMessagePolicy"] == "File"
        assert env_of(container)[TERMINATION_LOG_VARIABLE] == container["terminationMessagePath"]

    def test_every_volume_is_of_a_kind_that_restricted_allows_and_bounded(self) -> None:
        for volume in self.SPEC["volumes"]:
            (kind,) = set(volume) - {"name"}
            assert kind in {"configMap", "emptyDir", "secret", "persistentVolumeClaim"}
            if kind == "emptyDir":
                assert re.fullmatch(r"\d+Gi", volume["emptyDir"]["sizeLimit"])

    def test_whatever_is_cached_goes_to_a_writable_volume(self) -> None:
        stage = self.SPEC["containers"][0]
        writable = [m["mountPath"] for m in stage["volumeMounts"] if not m.get("readOnly")]
        assert writable == ["/home/omni", "/cache", "/tmp", "/dev/shm"]  # noqa: S108
        env = env_of(stage)
        caches = {"HF_HOME", "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "NUMBA_CACHE_DIR"}
        assert caches <= set(env)
        assert all(env[name].startswith("/cache/") for name in caches)
        assert env["HOME"] == "/home/omni"

    @pytest.mark.parametrize(("gpus", "size"), [(0, "2Gi"), (1, "2Gi"), (8, "16Gi")])
    def test_shared_memory_is_bounded_by_gpus(self, gpus: int, size: str) -> None:
        resources = {"limits": {"nvidia.com/gpu": gpus}} if gpus else {}
        spec = pod_spec(build_all(make_single(resources=resources)))
        shm = next(volume for volume in spec["volumes"] if volume["name"] == "shm")
        assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


class TestServer:
    """What the operator tells the stage server agrees with what the server reads."""

    def test_arguments_are_those_of_the_command(self) -> None:
        spec = pod_spec(build_all(make_single(spec=HUB)))
        serve = _parser().parse_args(spec["containers"][0]["args"])
        assert (serve.command, serve.log_format) == ("serve", "json")
        config = next(m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "config")
        assert Path(serve.config).parent == Path(config["mountPath"])
        fetch = _parser().parse_args(spec["initContainers"][0]["args"])
        assert (fetch.command, fetch.uri, fetch.component) == ("fetch", "hf://org/model", "generic/llm")

    def test_ports_are_the_server_s(self) -> None:
        ports = {
            port["name"]: port["containerPort"] for port in pod_spec(build_all(make_single()))["containers"][0]["ports"]
        }
        listen = Listen()
        assert ports == {"grpc": listen.grpc_port, "health": listen.health_port, "metrics": listen.metrics_port}

    def test_probes_ask_what_the_server_answers_on_the_health_port(self) -> None:
        probes = build_probes(1)
        asked = {name: probe["grpc"] for name, probe in probes.items()}
        assert asked == {
            "startupProbe": {"port": Listen().health_port, "service": READINESS},
            "readinessProbe": {"port": Listen().health_port, "service": READINESS},
            "livenessProbe": {"port": Listen().health_port, "service": LIVENESS},
        }

    @pytest.mark.parametrize(("gpus", "seconds"), [(0, 600), (1, 1800), (2, 3000), (8, 3600)])
    def test_time_to_start_grows_with_the_model(self, gpus: int, seconds: int) -> None:
        assert startup_seconds(gpus) == seconds
        probe = build_probes(gpus)["startupProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] == seconds

    @pytest.mark.parametrize(("request_s", "grace"), [(300, 330), (0.5, 31), (7200, 7230)])
    def test_pods_may_end_their_longest_request(self, request_s: float, grace: int) -> None:
        spec = pod_spec(build_all(make_single(spec={"timeouts": {"request": request_s}})))
        assert spec["terminationGracePeriodSeconds"] == grace
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}

    def test_a_hung_process_does_not_get_that_long(self) -> None:
        probes = build_probes(0)
        assert all(probes[name]["terminationGracePeriodSeconds"] == 30 for name in ("startupProbe", "livenessProbe"))

    @pytest.mark.parametrize("model", [HUB, PVC, {}], ids=["hub", "claim", "image"])
    def test_a_rollout_is_called_failed_only_after_any_pod_could_have_started(self, model: Spec) -> None:
        deployment = pick(build_all(make_single(resources=GPU, spec=model)), "Deployment")["spec"]
        assert deployment["progressDeadlineSeconds"] > startup_seconds(1) + (3600 if model is HUB else 0)

    def test_threads_follow_a_limit_on_cpu_time(self) -> None:
        limited = pod_spec(build_all(make_single(resources={"limits": {"cpu": "3500m"}})))["containers"][0]
        assert env_of(limited)["OMP_NUM_THREADS"] == {
            "resourceFieldRef": {"containerName": limited["name"], "resource": "limits.cpu"}
        }
        assert "OMP_NUM_THREADS" not in env_of(pod_spec(build_all(make_single()))["containers"][0])
        with_gpu = make_single(resources={"limits": {"cpu": 4, **GPU["limits"]}})
        assert "OMP_NUM_THREADS" not in env_of(pod_spec(build_all(with_gpu))["containers"][0]), "vLLM decides there"

    def test_nothing_of_the_operator_s_own_version_is_in_the_template(self) -> None:
        """Settings that an upgrade may change reach a template by the image only, and an image can be named."""
        pipeline = make_single(spec={"defaults": {"image": "stage:7"}})
        templates = [
            pick(build_all(pipeline, BuildSettings(default_image=image)), "Deployment")["spec"]["template"]
            for image in ("stage:1", "stage:2")
        ]
        assert templates[0] == templates[1]

    def test_pull_policy_is_left_to_kubernetes_unless_set(self) -> None:
        assert "imagePullPolicy" not in pod_spec(build_all(make_single()))["containers"][0]
        spec = pod_spec(build_all(make_single(spec=HUB), BuildSettings(image_pull_policy="Always")))
        assert {container["imagePullPolicy"] for container in all_containers(spec)} == {"Always"}


class TestModel:
    """Where the checkpoint comes from."""

    def model_path(self, children: list[dict[str, Any]], stage: str = "llm") -> str:
        return parse_stage_config(pick(children, "ConfigMap", stage)["data"]["stage.yaml"]).model.path

    def test_in_the_image(self) -> None:
        children = build_all(make_single())
        spec = pod_spec(children)
        assert "initContainers" not in spec
        assert "models" not in {volume["name"] for volume in spec["volumes"]}
        assert self.model_path(children) == "/models/tiny"

    @pytest.mark.parametrize(
        ("uri", "path"), [("pvc://models/qwen/omni", "/models/qwen/omni"), ("pvc://models", "/models")]
    )
    def test_on_a_claim(self, uri: str, path: str) -> None:
        children = build_all(make_single(spec={"model": {"uri": uri}}))
        spec = pod_spec(children)
        assert "initContainers" not in spec
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "models")
        assert volume["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
        assert {"name": "models", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]
        assert self.model_path(children) == path

    def test_from_the_hub_into_a_directory_of_the_component(self) -> None:
        children = build_all(make_pipeline(**HUB))
        for stage in make_stages():
            spec = pod_spec(children, stage["name"])
            args = _parser().parse_args(spec["initContainers"][0]["args"])
            assert str(args.dest) == self.model_path(children, stage["name"])
            assert args.dest.parent == args.commit_file.parent
            assert args.component == stage["component"]
            assert weight_prefixes(args.component)
            assert args.revision == "main"

    def test_the_token_is_a_file_that_only_the_download_sees(self) -> None:
        spec = pod_spec(build_all(make_single(spec=HUB)))
        fetch, stage = spec["initContainers"][0], spec["containers"][0]
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "hub-token")
        assert volume["secret"] == {
            "secretName": "hub",
            "items": [{"key": "token", "path": "token"}],
            "defaultMode": 0o440,
            "optional": True,
        }
        mount = next(mount for mount in fetch["volumeMounts"] if mount["name"] == "hub-token")
        assert str(_parser().parse_args(fetch["args"]).token_file) == f"{mount['mountPath']}/token"
        assert mount["readOnly"] is True
        assert "hub-token" not in {mount["name"] for mount in stage["volumeMounts"]}
        assert "secretKeyRef" not in str(spec)

    def test_a_public_repository_needs_no_token(self) -> None:
        spec = pod_spec(build_all(make_single(spec={"model": {"uri": "hf://org/model"}})))
        assert "--token-file" not in spec["initContainers"][0]["args"]
        assert "secret" not in str(spec["volumes"])

    def test_the_certificate_is_a_directory_of_the_entry_alone(self) -> None:
        tls = {"secretName": "web-cert", "clientCertificates": "Required"}
        children = build_all(make_pipeline(entry={"tls": tls}))
        spec = pod_spec(children, "thinker")
        volume = next(volume for volume in spec["volumes"] if volume["name"] == "tls")
        assert volume["secret"] == {
            "secretName": "web-cert",
            "items": [{"key": name, "path": name} for name in ("tls.crt", "tls.key", "ca.crt")],
            "defaultMode": 0o440,
            "optional": True,
        }
        (mount,) = [mount for mount in spec["containers"][0]["volumeMounts"] if mount["name"] == "tls"]
        assert set(mount) == {"name", "mountPath", "readOnly"}
        config = parse_stage_config(pick(children, "ConfigMap", "thinker")["data"]["stage.yaml"])
        assert config.listen.tls == ServerTls(
            directory=mount["mountPath"], client_certificates="Required", source="Secret web-cert"
        )
        for stage in ("talker", "token2wav"):
            assert "web-cert" not in str(pod_spec(children, stage))
            assert parse_stage_config(pick(children, "ConfigMap", stage)["data"]["stage.yaml"]).listen == Listen()

    def test_turning_tls_on_restarts_the_entry_alone(self) -> None:
        before, after = build_all(make_pipeline()), build_all(make_pipeline(entry={"tls": {"secretName": "cert"}}))
        for stage, same in (("thinker", False), ("talker", True), ("token2wav", True)):
            assert (pick(before, "Deployment", stage) == pick(after, "Deployment", stage)) is same

    def test_serving_is_offline_fetching_is_not(self) -> None:
        spec = pod_spec(build_all(make_single(spec=HUB)))
        assert env_of(spec["containers"][0])["HF_HUB_OFFLINE"] == "1"
        assert env_of(spec["initContainers"][0])["HF_HUB_OFFLINE"] == "0"
        assert "HF_ENDPOINT" not in env_of(spec["initContainers"][0])
        mirrored = pod_spec(build_all(make_single(spec=HUB), BuildSettings(hub_endpoint="https://hub.example")))
        assert env_of(mirrored["initContainers"][0])["HF_ENDPOINT"] == "https://hub.example"

    def test_the_cache_is_a_claim_or_a_bounded_volume_of_the_pod(self) -> None:
        own = pod_spec(build_all(make_single(resources={"limits": {"nvidia.com/gpu": 2}}, spec=HUB)))
        assert {"name": "models", "emptyDir": {"sizeLimit": "400Gi"}} in own["volumes"]
        claim = {"model": {**HUB["model"], "cache": {"persistentVolumeClaim": "cache"}}}
        shared = pod_spec(build_all(make_single(spec=claim)))
        assert {"name": "models", "persistentVolumeClaim": {"claimName": "cache"}} in shared["volumes"]
        for spec in (own, shared):
            assert {"name": "models", "mountPath": "/models"} in spec["initContainers"][0]["volumeMounts"]
            assert {"name": "models", "mountPath": "/models", "readOnly": True} in spec["containers"][0]["volumeMounts"]

    @pytest.mark.parametrize("revision", ["..", "refs/pr/1", "../../etc", "v1.0"])
    def test_a_revision_cannot_lead_out_of_the_cache(self, revision: str) -> None:
        children = build_all(make_single(spec={"model": {"uri": "hf://org/model", "revision": revision}}))
        path = Path(self.model_path(children))
        assert path.parts[:4] == ("/", "models", "org", "model")
        assert len(path.parts) == 6
        assert ".." not in path.parts

    def test_the_download_is_charged_like_the_stage_but_takes_no_gpu(self) -> None:
        resources = {"limits": {"nvidia.com/gpu": 1, "memory": "8Gi", "cpu": 2}, "requests": {"cpu": "500m"}}
        fetch, stage = all_containers(pod_spec(build_all(make_single(resources=resources, spec=HUB))))
        assert stage["resources"]["limits"] == {"nvidia.com/gpu": "1", "memory": "8Gi", "cpu": "2"}
        assert fetch["resources"] == {"limits": {"memory": "8Gi", "cpu": "2"}, "requests": {"cpu": "500m"}}

    def test_without_resources_none_are_given(self) -> None:
        for container in all_containers(pod_spec(build_all(make_single(spec=HUB)))):
            assert "resources" not in container


class TestPlacement:
    """Settings of the resource that place pods."""

    SETTINGS = {
        "imagePullSecrets": [{"name": "registry"}],
        "runtimeClassName": "nvidia",
        "nodeSelector": {"gpu": "h100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 1,
                        "podAffinityTerm": {
                            "labelSelector": {},
                            "topologyKey": "kubernetes.io/hostname",
                        },
                    }
                ]
            },
        },
        "priorityClassName": "serving",
    }

    @pytest.mark.parametrize("where", ["stage", "defaults"])
    @pytest.mark.parametrize("field", SETTINGS)
    def test_reaches_the_pod_as_it_was_written(self, field: str, where: str) -> None:
        setting = {field: self.SETTINGS[field]}
        pipeline = make_single(**setting) if where == "stage" else make_single(spec={"defaults": setting})
        assert pod_spec(build_all(pipeline))[field] == self.SETTINGS[field]

    def test_nothing_said_nothing_written(self) -> None:
        assert not set(self.SETTINGS) & set(pod_spec(build_all(make_single())))

    def test_a_stage_s_own_setting_replaces_the_default_as_a_whole(self) -> None:
        defaults = {"nodeSelector": {"a": "1", "b": "2"}, "tolerations": [{"operator": "Exists"}], "image": "stage:2"}
        pipeline = make_single(nodeSelector={"c": "3"}, tolerations=[], image="stage:3", spec={"defaults": defaults})
        spec = pod_spec(build_all(pipeline))
        assert spec["nodeSelector"] == {"c": "3"}
        assert "tolerations" not in spec
        assert spec["containers"][0]["image"] == "stage:3"

    def test_images(self) -> None:
        assert pod_spec(build_all(make_single()))["containers"][0]["image"] == SETTINGS.default_image
        spec = pod_spec(build_all(make_single(spec={"defaults": {"image": "stage:2"}, **HUB})))
        assert {container["image"] for container in all_containers(spec)} == {"stage:2"}

    def test_pods_are_spread_over_hosts_where_possible(self) -> None:
        (spread,) = pod_spec(build_all(make_single()))["topologySpreadConstraints"]
        template = pick(build_all(make_single()), "Deployment")["spec"]["template"]
        assert (spread["topologyKey"], spread["maxSkew"]) == ("kubernetes.io/hostname", 1)
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()

    def test_or_as_the_resource_says(self) -> None:
        topology = [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}]
        (spread,) = pod_spec(build_all(make_single(topology=topology)))["topologySpreadConstraints"]
        assert {key: spread[key] for key in topology[0]} == topology[0]
        assert "topologySpreadConstraints" not in pod_spec(build_all(make_single(topology=[])))

    def test_labels_and_annotations_of_the_resource_never_replace_ours(self) -> None:
        template = pick(
            build_all(make_single(podLabels={"team": "speech"}, podAnnotations={"example.com/note": "x"})), "Deployment"
        )["spec"]["template"]["metadata"]
        plain = pick(build_all(make_single()), "Deployment")["spec"]["template"]["metadata"]
        assert template["labels"] == {**plain["labels"], "team": "speech"}
        assert template["annotations"] == {**plain["annotations"], "example.com/note": "x"}

    def test_fields_that_the_server_would_drop_are_not_written(self) -> None:
        value = {"a": None, "b": [], "c": {"d": {}}, "e": [{}, {"f": []}], "labelSelector": {}, "g": 0, "h": ""}
        assert drop_empty(value) == {"e": [{}, {}], "labelSelector": {}, "g": 0, "h": ""}
