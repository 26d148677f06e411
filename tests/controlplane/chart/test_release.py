"""The chart of a release, as `make release` packages it: pushed to a real registry, and installed from there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.release.build import build_chart, push_chart

from omni_cli.local.ports import pick_ports
from support.controlplane.binaries import find_binaries
from support.controlplane.charts.helm import NAMESPACE, RELEASE, VERSION, Helm, pick_one, read_manifests
from support.controlplane.charts.operator_pods import OperatorPods
from support.controlplane.control_plane import ControlPlane
from support.controlplane.pipelines import build_pipeline, list_children, wait_settled
from support.processes.process import ChildProcess

pytestmark = pytest.mark.controlplane


def crane(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = find_binaries("crane")["crane"]
    return subprocess.run([program, *arguments, "--insecure"], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the address of an empty registry without TLS."""
    folder = tmp_path_factory.mktemp("registry")
    address = f"127.0.0.1:{pick_ports(1)[0]}"
    serve = [find_binaries("crane")["crane"], "registry", "serve", "--address", address, "--disk", folder]
    running = ChildProcess("registry", serve, folder.with_suffix(".log"))
    running.start()
    try:
        running.wait_until(lambda: crane("catalog", address).returncode == 0)
        yield address
    finally:
        running.kill()


@pytest.fixture(scope="module")
def built(registry: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the chart's package, install.yaml and crds.yaml, for images of `registry`."""
    out = tmp_path_factory.mktemp("release")
    build_chart(out, find_binaries("helm")["helm"], f"{registry}/omni")
    return out


def test_the_files_beside_the_package_name_the_same_images(built: Path, registry: str, helm: Helm) -> None:
    objects = read_manifests((built / "install.yaml").read_text())
    (container,) = pick_one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"{registry}/omni/omnipipeline-operator:{VERSION}"
    packaged = read_manifests(
        helm.run("template", RELEASE, built / f"omnipipeline-{VERSION}.tgz", "--kube-version=1.34.0").stdout
    )
    (rendered,) = pick_one(packaged, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert rendered["image"] == container["image"]
    crds = [one for one in objects if one["kind"] == "CustomResourceDefinition"]
    alone = list(yaml.safe_load_all((built / "crds.yaml").read_text()))
    assert {one["metadata"]["name"] for one in alone} == {one["metadata"]["name"] for one in crds}
    assert len(alone) == len(crds) == 2


def test_the_chart_is_installed_from_the_registry(
    built: Path, registry: str, plane: ControlPlane, tmp_path: Path
) -> None:
    program = find_binaries("helm")["helm"]
    reference = push_chart(built, program, registry, plain_http=True)
    name, _, digest = reference.partition("@")
    assert name == f"{registry}/charts/omnipipeline:{VERSION}"
    assert crane("digest", name).stdout.strip() == digest

    plane.create_namespace(NAMESPACE)
    models = plane.create_namespace("models")
    environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig)}
    command = f"{program} install {RELEASE} oci://{registry}/charts/omnipipeline --version {VERSION} --plain-http"
    with OperatorPods(plane, tmp_path) as pods:
        done = pods.run(f"{command} --namespace {NAMESPACE} --wait", environment)
        assert done.returncode == 0, done.stdout
        assert f"Digest: {digest}" in done.stdout
        manifest = build_pipeline()
        del manifest["spec"]["defaults"]["image"]
        models.apply(manifest)
        wait_settled(models)
    deployments = [child for (kind, _), child in list_children(models).items() if kind == "Deployment"]
    images = {item["spec"]["template"]["spec"]["containers"][0]["image"] for item in deployments}
    assert images == {f"{registry}/omni/omnipipeline-stage:{VERSION}"}
