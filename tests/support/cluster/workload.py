"""What tests create on the node: namespaces, volumes, the operator (from its chart) and pipelines."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from support.cluster.cluster import Cluster
from support.cluster.node.images import OPERATOR_IMAGE, ROOT, STAGE_IMAGE
from support.controlplane.pipelines import wait_settled
from support.controlplane.server.api import Api, Manifest, eventually

CHART = ROOT / "helm" / "omnipipeline"
SAMPLES = ROOT / "manifests" / "samples"
SYSTEM = "omnipipeline-system"
RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


def helm(cluster: Cluster, *arguments: str | Path, timeout_s: float = 300, check: bool = True) -> str:
    """Runs the real helm. Returns its output. Raises AssertionError if helm fails and `check` is set."""
    command = [cluster.binaries["helm"], "--kubeconfig", cluster.kubeconfig, *arguments]
    environment = {"HOME": str(cluster.directory), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout_s, env=environment, check=False
    )
    if check and result.returncode:
        raise AssertionError(f"helm {' '.join(map(str, arguments))} -> {result.returncode}:\n{result.stderr}")
    return result.stdout


def install_operator(
    cluster: Cluster, namespace: str, *, release: str = "omnipipeline", values: Mapping[str, Any] | None = None
) -> None:
    """Installs or upgrades the chart with the node's images, and waits until the operator is ready."""
    operator, stage = OPERATOR_IMAGE.rsplit(":", 1), STAGE_IMAGE.rsplit(":", 1)
    settings = {
        "image": {"repository": operator[0], "tag": operator[1], "pullPolicy": "Never"},
        "stageImage": {"repository": stage[0], "tag": stage[1], "pullPolicy": "Never"},
        **(values or {}),
    }
    file = cluster.directory / f"values-{release}.yaml"
    file.write_text(yaml.safe_dump(settings))
    helm(
        cluster,
        *("upgrade", "--install", release, CHART, "--namespace", namespace, "--values", file),
        *("--wait", "--timeout", "3m"),
    )


def make_namespace(cluster: Cluster, name: str, labels: Mapping[str, str] = RESTRICTED) -> Api:
    """Makes a namespace. By default it enforces Pod Security `restricted`.

    Returns the administrator's client in that namespace.
    """
    metadata = {"name": name, "labels": dict(labels)}
    cluster.admin.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return cluster.admin.in_namespace(name)


def share_models(cluster: Cluster, checkpoint: Path) -> Path:
    """Returns a folder for a volume, with the checkpoint as tiny-omni. The pods' user may read it and add files."""
    folder = cluster.layout.run / "models"
    shutil.copytree(checkpoint, folder / "tiny-omni", dirs_exist_ok=True)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    folder.chmod(0o777)
    return folder


def add_volume(cluster: Cluster, namespace: str, name: str, folder: Path) -> None:
    """Makes a PersistentVolumeClaim for a folder of this machine, and waits until the claim is bound."""
    volume = add_persistent_volume(cluster, namespace, name, folder, access="ReadWriteMany")
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": namespace}}
    fields = {key: volume["spec"][key] for key in ("accessModes", "storageClassName")}
    requests = {"requests": {"storage": "1Gi"}}
    claim |= {"spec": {**fields, "volumeName": volume["metadata"]["name"], "resources": requests}}
    api = cluster.admin.in_namespace(namespace)
    api.apply(claim)
    eventually(lambda: api.get("PersistentVolumeClaim", name)["status"].get("phase") == "Bound", why=f"{name} bound")


def add_persistent_volume(
    cluster: Cluster, namespace: str, claim: str, folder: Path, *, access: str = "ReadWriteOnce"
) -> Manifest:
    """Makes and returns a PersistentVolume for a folder of this machine. Only the claim `claim` can bind to it."""
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{namespace}-{claim}"},
        "spec": {
            "accessModes": [access],
            "storageClassName": "",
            "capacity": {"storage": "1Gi"},
            "hostPath": {"path": str(folder), "type": "Directory"},
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": claim},
        },
    }
    cluster.admin.apply(volume)
    return volume


def load_sample(name: str, *, model: str, rename: str | None = None, entry_alone: bool = False) -> Manifest:
    """Returns a sample of manifests/samples with another model URI. `entry_alone` keeps only the entry stage."""
    sample: Manifest = yaml.safe_load((SAMPLES / f"{name}.yaml").read_text())
    sample["spec"]["model"] = {"uri": model}
    if rename:
        sample["metadata"]["name"] = rename
    if entry_alone:
        sample["spec"]["stages"] = sample["spec"]["stages"][:1]
        # Voice aliases need a stage that returns audio.
        sample["spec"].pop("aliases", None)
    return sample


def serve_sample(cluster: Cluster, namespace: str, checkpoint: Path) -> Api:
    """Installs the operator and serves the three-stage sample in a namespace. Returns the client of that namespace."""
    make_namespace(cluster, SYSTEM)
    install_operator(cluster, SYSTEM)
    api = make_namespace(cluster, namespace)
    add_volume(cluster, namespace, "models", share_models(cluster, checkpoint))
    api.apply(load_sample("tiny-omni", model="pvc://models/tiny-omni"))
    wait_settled(api, "tiny-omni", timeout_s=300)
    return api


def delete_pipeline(api: Api, name: str) -> None:
    """Deletes a pipeline and waits until it and its pods are gone.

    Without the wait, a pipeline of the same name that is applied too early would be deleted as well.
    """
    api.delete("OmniPipeline", name, propagation="Foreground")
    eventually(
        lambda: not api.find("OmniPipeline", name) and not api.list("Pod", f"omnipipeline.io/pipeline={name}"),
        timeout_s=120,
        why=f"{name} and its pods are gone",
    )
