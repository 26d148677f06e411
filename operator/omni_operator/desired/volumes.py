"""Volumes of a stage's pod. The root file system is read-only, so writes go to emptyDirs with a size limit, and
downloads to the model volume."""

from __future__ import annotations

from typing import Final

from omni_kube.objects import Manifest
from omni_operator.desired.model_files import MODELS_VOLUME
from omni_operator.desired.pod_settings import build_user_volumes
from omni_operator.desired.stage_build import StageBuild

CONFIG_MOUNT: Final = "/etc/omnipipeline"
HOME_MOUNT: Final = "/home/omni"
CACHE_MOUNT: Final = "/cache"
COMPILE_VOLUME: Final = "compile-cache"
COMPILE_MOUNT: Final = "/compile-cache"
TOKEN_VOLUME: Final = "hub-token"  # noqa: S105 - the name of a volume
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
        volumes.append({"name": TOKEN_VOLUME, "secret": secret})
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
