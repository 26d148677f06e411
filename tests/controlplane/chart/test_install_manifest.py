"""manifests/ is the CRDs, and the chart rendered by default, plus a Namespace and without Helm's own parts.

The real kubectl applies, kustomizes and deletes them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.controlplane.charts.helm import (
    CHART,
    NAMESPACE,
    ROOT,
    VERSION,
    Helm,
    Manifest,
    operator_process,
    pick_one,
    read_manifests,
)
from support.controlplane.charts.operator_pods import OperatorPods
from support.controlplane.control_plane import ControlPlane
from support.controlplane.pipelines import build_pipeline, wait_settled
from support.controlplane.server.api import eventually
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.controlplane

MANIFESTS = ROOT / "manifests"
OPERATOR = MANIFESTS / "operator.yaml"
OVERLAY = ROOT / "docs" / "examples" / "private-registry"
CRD = "omnipipelines.omnipipeline.io"


def key_of(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def test_it_is_the_charts_render(helm: Helm) -> None:
    script = ROOT / "tools" / "render_manifests.py"
    command = [sys.executable, str(script), "--helm", str(helm.binary), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def test_it_leaves_out_what_is_helms_alone(helm: Helm) -> None:
    """The manifests are the chart's objects and a Namespace, without Helm's test pod, labels and annotations.

    This test does not use the script that writes the manifest.
    """
    files = (OPERATOR, *(MANIFESTS / "crd").glob("*.yaml"))
    written = {key_of(item): item for file in files for item in read_manifests(file.read_text())}
    rendered = {key_of(item): item for item in helm.template() if item["kind"] != "Pod"}
    assert written.keys() - rendered.keys() == {("Namespace", NAMESPACE)}
    assert rendered.keys() <= written.keys()
    for key, item in rendered.items():
        assert without_metadata(written[key]) == without_metadata(item), key
    assert "helm" not in OPERATOR.read_text().partition("\n---\n")[2].lower()


def without_metadata(manifest: Manifest) -> Any:
    """Returns the object without any metadata, including that of a pod template. Helm reads numbers as floats."""
    if isinstance(manifest, dict):
        return {key: without_metadata(value) for key, value in manifest.items() if key != "metadata"}
    if isinstance(manifest, list):
        return [without_metadata(item) for item in manifest]
    return float(manifest) if isinstance(manifest, int) else manifest


def test_a_kustomization_changes_images_and_pull_secrets(plane: ControlPlane) -> None:
    base = read_manifests(plane.kubectl("kustomize", MANIFESTS).stdout)
    operator = {key_of(item) for item in read_manifests(OPERATOR.read_text())}
    assert {key_of(item) for item in base if item["kind"] != "CustomResourceDefinition"} == operator
    overlaid = read_manifests(plane.kubectl("kustomize", OVERLAY).stdout)
    deployment = pick_one(overlaid, "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.example/omnipipeline-operator:{VERSION}"
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    environment = operator_process(deployment)[1]
    before = operator_process(pick_one(base, "Deployment"))[1]
    image = {"OMNI_OPERATOR_DEFAULT_IMAGE": f"registry.example/omnipipeline-stage:{VERSION}"}
    assert environment == {**before, **image}


def test_the_overlays_version_is_the_charts() -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    text = (OVERLAY / "kustomization.yaml").read_text()
    assert f"newTag: {version}\n" in text
    assert f"omnipipeline-stage:{version}\n" in text


def test_the_tiny_manifests_are_taken_as_they_are(plane: ControlPlane) -> None:
    plane.apply_crds(*(MANIFESTS / "crd").glob("*.yaml"))
    plane.create_namespace("tiny", labels={"pod-security.kubernetes.io/warn": "restricted"})
    flags = ("--dry-run=server", "--validate=strict", "--server-side")
    done = plane.kubectl("apply", *flags, "-f", MANIFESTS / "tiny", namespace="tiny")
    assert len(done.stdout.splitlines()) == 3
    assert "Warning" not in done.stderr


def test_apply_again_serve_and_delete_by_selector(plane: ControlPlane, tmp_path: Path) -> None:
    first = plane.kubectl("apply", "-k", MANIFESTS)
    assert "created" in first.stdout
    assert "Warning" not in first.stderr
    again = plane.kubectl("apply", "-k", MANIFESTS).stdout.splitlines()
    assert [line for line in again if not line.endswith("unchanged")] == []
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-k", MANIFESTS)
    api = plane.create_namespace("models")
    with OperatorPods(plane, tmp_path) as pods:
        pods.step()
        plane.kubectl("rollout", "status", "deployment/omnipipeline", namespace=NAMESPACE)
        api.apply(build_pipeline())
        wait_settled(api)
    plane.kubectl("delete", "-f", OPERATOR, "--selector", "app.kubernetes.io/name=omnipipeline-operator")
    system = plane.admin.in_namespace(NAMESPACE)
    eventually(lambda: system.list("Pod") == [], why="the operator's pod is deleted")
    assert plane.admin.find("CustomResourceDefinition", CRD)
    assert plane.admin.find("Namespace", NAMESPACE)
    assert wait_settled(api)["metadata"]["name"] == "omni"
    assert [role for role in plane.admin.list("ClusterRole") if "omnipipeline" in role["metadata"]["name"]] == []
