"""The chart of a release, as `make release` packages it: pushed to a real registry, and installed from there."""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tools.release.build import PUSHED, build_chart, push_chart, sign

from omni_cli.local.ports import pick_ports
from support.controlplane.binaries import find_binaries
from support.controlplane.charts.helm import NAMESPACE, RELEASE, VERSION, Helm, pick_one, read_manifests
from support.controlplane.charts.operator_pods import OperatorPods
from support.controlplane.control_plane import ControlPlane
from support.controlplane.pipelines import build_pipeline, list_children, wait_settled
from support.processes.build_cache import cache_root, fill_once
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


def test_the_chart_is_installed_from_a_mirror_and_nothing_else_is_pulled(
    built: Path, registry: str, plane: ControlPlane, tmp_path: Path
) -> None:
    program = find_binaries("helm")["helm"]
    reference = push_chart(built, program, registry, plain_http=True)
    name, _, digest = reference.partition("@")
    assert name == f"{registry}/charts/omnipipeline:{VERSION}"
    mirror = f"{registry}/site"
    assert crane("copy", name, name.replace(registry, mirror)).returncode == 0
    assert crane("digest", name.replace(registry, mirror)).stdout.strip() == digest

    plane.create_namespace(NAMESPACE)
    models = plane.create_namespace("models")
    environment = {**os.environ, "HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig)}
    command = (
        f"{program} install {RELEASE} oci://{mirror}/charts/omnipipeline --version {VERSION} --plain-http "
        f"--set imageRegistry={mirror},gateway.enabled=true"
    )
    with OperatorPods(plane, tmp_path) as pods:
        done = pods.run(f"{command} --namespace {NAMESPACE} --wait", environment)
        assert done.returncode == 0, done.stdout
        assert f"Digest: {digest}" in done.stdout
        manifest = build_pipeline(model={"uri": "hf://org/open"})
        del manifest["spec"]["defaults"]["image"]
        models.apply(manifest)
        wait_settled(models)
    # Without internet access: every container of every object is from the mirror, also where the stages fetch a model.
    done = pods.run(f"{program} get manifest {RELEASE} --namespace {NAMESPACE}", environment)
    hooks = pods.run(f"{program} get hooks {RELEASE} --namespace {NAMESPACE}", environment)
    images = set(re.findall(r'image: "?([^"\s]+)', done.stdout + hooks.stdout))
    for (kind, _), child in list_children(models).items():
        if kind == "Deployment":
            spec = child["spec"]["template"]["spec"]
            images |= {one["image"] for one in (*spec["containers"], *spec.get("initContainers", ()))}
    assert images == {f"{mirror}/omnipipeline-{name}:{VERSION}" for name in ("operator", "stage")}


COSIGN = "v3.1.3"


@pytest.fixture(scope="module")
def cosign() -> Path:
    """Returns the program, built once with Go: its version alone pins its dependencies, which Go's log vouches for."""
    folder = cache_root() / "go" / f"cosign-{COSIGN}"

    def build(building: Path) -> None:
        environment = {**os.environ, "GOBIN": str(building), "CGO_ENABLED": "0"}
        package = f"github.com/sigstore/cosign/v3/cmd/cosign@{COSIGN}"
        subprocess.run(["go", "install", "-trimpath", "-ldflags=-s -w", package], env=environment, check=True)

    fill_once(folder, "cosign", build)
    return folder / "cosign"


@pytest.mark.full
def test_a_release_is_signed_and_an_altered_one_is_refused(
    built: Path, registry: str, cosign: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a key of our own: keyless signatures need Sigstore's servers and an identity."""
    monkeypatch.setenv("COSIGN_PASSWORD", "")
    push_chart(built, find_binaries("helm")["helm"], registry, plain_http=True)
    subprocess.run([cosign, "generate-key-pair", f"--output-key-prefix={tmp_path}/cosign"], check=True)
    layer = tmp_path / "layer.tar"
    with tarfile.open(layer, "w") as archive:
        archive.add(built / "crds.yaml", "crds.yaml")
    for name in (one.format(version=VERSION) for one in PUSHED if not one.startswith("charts/")):
        made = crane("append", "--new_layer", str(layer), "--new_tag", f"{registry}/{name}")
        assert made.returncode == 0, made.stderr

    signed = sign(registry, cosign, key=tmp_path / "cosign.key", plain_http=True)
    assert len(signed) == len(PUSHED)

    def verify(reference: str) -> subprocess.CompletedProcess[str]:
        flags = [f"--key={tmp_path}/cosign.pub", "--insecure-ignore-tlog", "--allow-http-registry"]
        return subprocess.run([cosign, "verify", *flags, reference], capture_output=True, text=True, check=False)

    for reference in signed:
        assert verify(reference).returncode == 0, verify(reference).stderr
    altered = f"{registry}/omnipipeline-operator:{VERSION}"
    assert crane("append", "--base", altered, "--new_layer", str(layer), "--new_tag", altered).returncode == 0
    refused = verify(altered)
    assert refused.returncode != 0
    assert "no signatures found" in refused.stderr
