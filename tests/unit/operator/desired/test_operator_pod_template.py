"""The pod template: Pod Security `restricted`, a read-only root, and the server's arguments, probes and ports."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.deployment import build_probes, startup_seconds
from omni_operator.desired.pod_settings import USER_ID
from omni_proto.pod_contract import TERMINATION_LOG_VARIABLE
from omni_proto.stage_config import Listen
from omni_stage.__main__ import _parser
from omni_stage.service.server.health import LIVENESS, READINESS
from support.operator.operator_pipelines import GPU, Spec, build_all, make_single, pick, pod_spec
from support.operator.pod_templates import HUB, PVC, all_containers, env_of


class TestSecurity:
    """Pods meet Pod Security `restricted`, and have a read-only root filesystem and no service account token."""

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
    """Arguments, ports and probes in the template match what the stage server reads and answers."""

    def test_arguments_are_those_of_the_command(self) -> None:
        """The command line of omni_stage accepts the arguments of both containers."""
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
        probes = build_probes(60)
        asked = {name: probe["grpc"] for name, probe in probes.items()}
        assert asked == {
            "startupProbe": {"port": Listen().health_port, "service": READINESS},
            "readinessProbe": {"port": Listen().health_port, "service": READINESS},
            "livenessProbe": {"port": Listen().health_port, "service": LIVENESS},
        }

    @pytest.mark.parametrize(("gpus", "seconds"), [(0, 600), (1, 1800), (2, 3000), (8, 3600)])
    def test_time_to_start_grows_with_the_model(self, gpus: int, seconds: int) -> None:
        assert startup_seconds(gpus) == seconds
        probe = build_probes(startup_seconds(gpus))["startupProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] == seconds

    @pytest.mark.parametrize(("request_s", "grace"), [(300, 330), (0.5, 31), (7200, 7230)])
    def test_pods_may_end_their_longest_request(self, request_s: float, grace: int) -> None:
        """The termination grace period is at least 30 s longer than the longest request."""
        spec = pod_spec(build_all(make_single(spec={"timeouts": {"request": request_s}})))
        assert spec["terminationGracePeriodSeconds"] == grace
        assert spec["containers"][0]["lifecycle"] == {"preStop": {"sleep": {"seconds": 5}}}

    def test_a_hung_process_does_not_get_that_long(self) -> None:
        """After a failed startup or liveness probe the grace period is only 30 s."""
        probes = build_probes(60)
        assert all(probes[name]["terminationGracePeriodSeconds"] == 30 for name in ("startupProbe", "livenessProbe"))

    @pytest.mark.parametrize("model", [HUB, PVC, {}], ids=["hub", "claim", "image"])
    def test_a_rollout_is_called_failed_only_after_any_pod_could_have_started(self, model: Spec) -> None:
        """The progress deadline exceeds the longest download and start of a pod."""
        deployment = pick(build_all(make_single(resources=GPU, spec=model)), "Deployment")["spec"]
        assert deployment["progressDeadlineSeconds"] > startup_seconds(1) + (3600 if model is HUB else 0)

    def test_threads_follow_a_limit_on_cpu_time(self) -> None:
        """OMP_NUM_THREADS is the CPU limit. Without a limit, or with a GPU, it is not set."""
        limited = pod_spec(build_all(make_single(resources={"limits": {"cpu": "3500m"}})))["containers"][0]
        assert env_of(limited)["OMP_NUM_THREADS"] == {
            "resourceFieldRef": {"containerName": limited["name"], "resource": "limits.cpu"}
        }
        assert "OMP_NUM_THREADS" not in env_of(pod_spec(build_all(make_single()))["containers"][0])
        with_gpu = make_single(resources={"limits": {"cpu": 4, **GPU["limits"]}})
        assert "OMP_NUM_THREADS" not in env_of(pod_spec(build_all(with_gpu))["containers"][0]), (
            "with a GPU, vLLM decides"
        )

    def test_nothing_of_the_operator_s_own_version_is_in_the_template(self) -> None:
        """The operator's version enters a template only as the default image. A spec can set its own image instead."""
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
