"""Deployment of a stage: its pod template, and its rolling update for a compatible change.

The template does not depend on the operator's version, so an upgrade of the operator restarts no pod unless the default
image changes. Its containers are the stage server, and an init container that downloads a checkpoint. A stage's
setting of the pod replaces the pipeline's setting completely; they are not merged.

The probes of the stage server call gRPC on the health-only port:

startup      `readiness`: the engine is loaded and warm. Until then the other probes do not run. A failed load ends
             the process by itself; the limit is for a load that hangs, so it is generous.
readiness    `readiness`: whether the stage accepts requests (its engine works and it does not drain). It does not
             depend on the health of downstream stages.
liveness     `liveness`: whether a restart is needed, because the watchdog has detected that the engine hangs.
"""

from __future__ import annotations

import math
from typing import Final

from omni_kube.objects import Manifest
from omni_operator import names
from omni_operator.desired.metadata import build_child
from omni_operator.desired.model_files import MODELS_MOUNT, MODELS_VOLUME, ModelFetch
from omni_operator.desired.pod_settings import (
    build_env,
    build_placement,
    build_pod_security,
    build_user_mounts,
    build_user_volumes,
    to_plain,
)
from omni_operator.desired.stage_build import CONFIG_KEY, StageBuild
from omni_proto.pipeline.rules.pods import GRACE_BEYOND_REQUEST_S
from omni_proto.pod_contract import (
    COMPILE_CACHE_VARIABLE,
    COMPILED_FOLDERS,
    DEFAULT_TERMINATION_LOG,
    GRPC_PORT,
    GRPC_PORT_NAME,
    HEALTH_PORT,
    HEALTH_PORT_NAME,
    LIVENESS,
    METRICS_PORT,
    METRICS_PORT_NAME,
    READINESS,
    START_LIMIT_VARIABLE,
    TERMINATION_LOG_VARIABLE,
)
from omni_proto.runtime.otlp import ENDPOINT as OTLP_ENDPOINT

CONFIG_MOUNT: Final = "/etc/omnipipeline"
HOME_MOUNT: Final = "/home/omni"
CACHE_MOUNT: Final = "/cache"
COMPILE_VOLUME: Final = "compile-cache"
COMPILE_MOUNT: Final = "/compile-cache"
TOKEN_MOUNT: Final = "/etc/omnipipeline-token"  # noqa: S105 - a path
TOKEN_FILE: Final = "token"  # noqa: S105 - a file's name
TLS_VOLUME: Final = "tls"
TLS_MOUNT: Final = "/etc/omnipipeline-tls"
TLS_FILES: Final = ("tls.crt", "tls.key", "ca.crt")

_WRITABLE: Final = {"home": (HOME_MOUNT, "1Gi"), "cache": (CACHE_MOUNT, "10Gi"), "tmp": ("/tmp", "2Gi")}  # noqa: S108
_SHM_GIB_PER_GPU: Final = 2
"""Tensor parallel ranks exchange data through shared memory, which counts towards the pod's memory."""
_GROUP_READS: Final = 0o440


def writable_mounts() -> list[Manifest]:
    """Returns the mounts for home, caches and temporary files, which every container has."""
    return [{"name": name, "mountPath": path} for name, (path, _) in _WRITABLE.items()]


def build_volumes(build: StageBuild) -> list[Manifest]:
    """Returns the pod's volumes."""
    shm = build.setting("shm_size")
    shm = f"{_SHM_GIB_PER_GPU * max(1, build.devices)}Gi" if shm is None else str(shm)
    volumes: list[Manifest] = [
        {"name": "config", "configMap": {"name": build.config_map}},
        *({"name": name, "emptyDir": {"sizeLimit": size}} for name, (_, size) in _WRITABLE.items()),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shm}},
    ]
    if (shared := build.setting("compile_cache")) is not None:
        volumes.append({"name": COMPILE_VOLUME, "persistentVolumeClaim": {"claimName": shared.claim_name}})
    if build.model.volume is not None:
        volumes.append({"name": MODELS_VOLUME, **build.model.volume})
    if build.model.fetch is not None and build.model.fetch.token is not None:
        token = build.model.fetch.token
        secret = {
            "secretName": token.name,
            "items": [{"key": token.key, "path": TOKEN_FILE}],
            "defaultMode": _GROUP_READS,
            # If the Secret is missing, the download reports it; otherwise the pod would hang in ContainerCreating.
            "optional": True,
        }
        volumes.append({"name": names.TOKEN_VOLUME, "secret": secret})
    if build.tls is not None:
        secret = {
            "secretName": build.tls.secret_name,
            "items": [{"key": name, "path": name} for name in TLS_FILES],
            "defaultMode": _GROUP_READS,
            # Optional for the same reason, and because ca.crt may be absent.
            "optional": True,
        }
        volumes.append({"name": TLS_VOLUME, "secret": secret})
    return volumes + build_user_volumes(build)


PULL_AND_SCHEDULE_S: Final = 900
"""Time until a pod's first container runs: a node may have to be started, and images with CUDA are about 10 GB."""
DOWNLOAD_S: Final = 3600
"""Time to download a checkpoint: about 70 GB at 20 MB/s."""


def build_deployment(build: StageBuild) -> Manifest:
    """Returns the stage's Deployment."""
    rollout = build.pipeline.spec.rollout
    spec = {
        "replicas": build.replicas,
        "selector": {"matchLabels": build.selector},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable},
        },
        "progressDeadlineSeconds": progress_deadline_seconds(build),
        # No minReadySeconds: a pod becomes ready only after a warm-up request has succeeded.
        "revisionHistoryLimit": 2,
        "template": build_pod_template(build),
    }
    return build_child("Deployment", build.name, build.owner, build.labels, {"spec": spec})


def build_pod_template(build: StageBuild) -> Manifest:
    """Returns the pod template. It conforms to Pod Security `restricted`, and its root file system is read-only."""
    labels = {**(build.setting("pod_labels") or {}), **build.labels}
    annotations = {**(build.setting("pod_annotations") or {}), names.CONFIG_HASH_ANNOTATION: build.config_hash}
    fetch = build.model.fetch
    spec: Manifest = {
        "serviceAccountName": build.setting("service_account_name") or names.service_account_name(build.owner.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": build_pod_security(build),
        "terminationGracePeriodSeconds": grace_seconds(build),
        "containers": [build_stage_container(build)],
        "volumes": build_volumes(build),
        **build_placement(build),
    }
    if fetch is not None:
        spec["initContainers"] = [build_fetch_container(build, fetch)]
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec}


def grace_seconds(build: StageBuild) -> int:
    """Returns the termination grace period in seconds, long enough for the longest request to complete."""
    own: int | None = build.setting("termination_grace_period_seconds")
    return own or math.ceil(build.pipeline.spec.timeouts.request) + GRACE_BEYOND_REQUEST_S


def progress_deadline_seconds(build: StageBuild) -> int:
    """Returns the seconds after which a rollout without progress has failed: more than any pod needs to get ready."""
    download = DOWNLOAD_S if build.model.fetch is not None else 0
    return PULL_AND_SCHEDULE_S + download + startup_limit(build)


PRE_STOP_SLEEP_S: Final = 5
"""Pause between the pod's removal from its Services and SIGTERM, in which callers learn of the removal."""
_COMMAND: Final = ("python", "-m", "omni_stage")
_INIT_RESOURCES: Final = ("cpu", "memory", "ephemeral-storage")

_CACHES: Final = {"HF_HOME": "huggingface", **COMPILED_FOLDERS}
"""Variables that place caches, and code that is compiled at run time, on a volume, because the root file system is
read-only."""


def build_stage_container(build: StageBuild) -> Manifest:
    """Returns the container of the stage server."""
    mounts = [{"name": "config", "mountPath": CONFIG_MOUNT, "readOnly": True}, *writable_mounts()]
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108 - a volume of the pod
    if build.setting("compile_cache") is not None:
        mounts.append({"name": COMPILE_VOLUME, "mountPath": COMPILE_MOUNT})
    if build.model.volume is not None:
        mounts.append({"name": MODELS_VOLUME, "mountPath": MODELS_MOUNT, "readOnly": True})
    mounts += build_user_mounts(build)
    if build.tls is not None:
        # A directory, not single files by subPath, because those are not updated when the Secret changes.
        mounts.append({"name": TLS_VOLUME, "mountPath": TLS_MOUNT, "readOnly": True})
    return {
        **_container(build, names.STAGE_CONTAINER),
        "args": ["serve", "--config", f"{CONFIG_MOUNT}/{CONFIG_KEY}", "--log-format", "json"],
        **build_env(build, [*_common_env(), *_stage_env(build)]),
        "ports": [
            {"name": GRPC_PORT_NAME, "containerPort": GRPC_PORT, "protocol": "TCP"},
            {"name": HEALTH_PORT_NAME, "containerPort": HEALTH_PORT, "protocol": "TCP"},
            {"name": METRICS_PORT_NAME, "containerPort": METRICS_PORT, "protocol": "TCP"},
        ],
        **_resources(build, only=None),
        **build_probes(startup_limit(build)),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SLEEP_S}}},
        "volumeMounts": mounts,
    }


def build_fetch_container(build: StageBuild, fetch: ModelFetch) -> Manifest:
    """Returns the init container that downloads the files of the stage's component.

    Of the pod's containers, only this one can read the token.
    """
    revision = ["--revision", fetch.revision] if fetch.revision else []
    args = ["fetch", "--uri", fetch.uri, *revision, "--component", fetch.component]
    args += ["--dest", fetch.destination, "--commit-file", fetch.commit_file, "--log-format", "json"]
    mounts = [*writable_mounts(), {"name": MODELS_VOLUME, "mountPath": MODELS_MOUNT}, *build_user_mounts(build)]
    if fetch.token is not None:
        args += ["--token-file", f"{TOKEN_MOUNT}/{TOKEN_FILE}"]
        mounts.append({"name": names.TOKEN_VOLUME, "mountPath": TOKEN_MOUNT, "readOnly": True})
    # The image may set HF_HUB_OFFLINE=1 for the stage server.
    env = [*_common_env(), _variable("HF_HUB_OFFLINE", "0"), _variable("HF_HUB_DISABLE_TELEMETRY", "1")]
    if build.settings.hub_endpoint is not None:
        env.append(_variable("HF_ENDPOINT", build.settings.hub_endpoint))
    return {
        **_container(build, names.FETCH_CONTAINER),
        "args": args,
        **build_env(build, env),
        # Quotas may require limits. Equal resources of both containers do not increase the pod's total.
        **_resources(build, only=_INIT_RESOURCES),
        "volumeMounts": mounts,
    }


def _container(build: StageBuild, name: str) -> Manifest:
    container: Manifest = {
        "name": name,
        "image": build.image,
        "command": list(_COMMAND),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": DEFAULT_TERMINATION_LOG,
        "terminationMessagePolicy": "File",
    }
    policy = build.setting("image_pull_policy") or build.settings.image_pull_policy
    if policy is not None:
        container["imagePullPolicy"] = policy
    return container


def _common_env() -> list[Manifest]:
    return [
        _variable("HOME", HOME_MOUNT),
        # torch needs a user name, and the user id may have none in the image.
        _variable("USER", "omni"),
        _variable(TERMINATION_LOG_VARIABLE, DEFAULT_TERMINATION_LOG),
        *(_variable(name, f"{CACHE_MOUNT}/{folder}") for name, folder in _CACHES.items()),
    ]


def _stage_env(build: StageBuild) -> list[Manifest]:
    env = [_variable("HF_HUB_OFFLINE", "1"), _variable("TRANSFORMERS_OFFLINE", "1")]
    env.append(_variable(START_LIMIT_VARIABLE, str(startup_limit(build))))
    if (collector := build.collector) is not None:
        env.append(_variable(OTLP_ENDPOINT, collector))
    if build.setting("compile_cache") is not None:
        env.append(_variable(COMPILE_CACHE_VARIABLE, COMPILE_MOUNT))
    limits = build.stage.resources.limits
    # Not with a GPU: vLLM then chooses the numbers of threads for loading and serving, unless OMP_NUM_THREADS is set.
    if "cpu" in limits and not build.devices:
        # The default number of threads comes from the affinity mask, which a limit on CPU time does not change.
        limit = {"containerName": names.STAGE_CONTAINER, "resource": "limits.cpu"}
        env.append({"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": limit}})
    return env


def _variable(name: str, value: str) -> Manifest:
    return {"name": name, "value": value}


def _resources(build: StageBuild, only: tuple[str, ...] | None) -> Manifest:
    resources: Manifest = {}
    for field, values in (("limits", build.stage.resources.limits), ("requests", build.stage.resources.requests)):
        kept = {name: str(value) for name, value in values.items() if only is None or name in only}
        if kept:
            resources[field] = kept
    if build.stage.resources.claims and only is None:
        resources["claims"] = [to_plain(claim) for claim in build.stage.resources.claims]
    return {"resources": resources} if resources else {}


STARTUP_S: Final = 600
"""Startup time on the CPU: imports (tens of seconds where cores are shared), a small model, one warm-up request."""
STARTUP_PER_GPU_S: Final = 1200
"""More time for each GPU: about 80 GB of weights from a network volume at 100 MB/s, compilation, graph capture."""
MAX_STARTUP_S: Final = 3600
_STARTUP_PERIOD_S: Final = 2
_HUNG_GRACE_S: Final = 30
"""Grace period of a process that hangs. It cannot drain, so it need not be given the pod's longer grace period."""


def startup_seconds(gpus: int) -> int:
    """Returns the longest time in seconds that a stage with that many GPUs may take to become ready."""
    return min(STARTUP_S + STARTUP_PER_GPU_S * gpus, MAX_STARTUP_S)


def startup_limit(build: StageBuild) -> int:
    """Returns the seconds that the stage may take to become ready: its own setting, else by its devices."""
    own: int | None = build.setting("startup_seconds")
    return own or startup_seconds(build.devices)


def build_probes(startup_s: int) -> Manifest:
    """Returns the startupProbe, readinessProbe and livenessProbe of a container that may take so long to start."""
    return {
        "startupProbe": {
            "grpc": {"port": HEALTH_PORT, "service": READINESS},
            "periodSeconds": _STARTUP_PERIOD_S,
            "timeoutSeconds": 3,
            "failureThreshold": math.ceil(startup_s / _STARTUP_PERIOD_S),
            "terminationGracePeriodSeconds": _HUNG_GRACE_S,
        },
        "readinessProbe": {
            "grpc": {"port": HEALTH_PORT, "service": READINESS},
            "periodSeconds": 5,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            "grpc": {"port": HEALTH_PORT, "service": LIVENESS},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": _HUNG_GRACE_S,
        },
    }
