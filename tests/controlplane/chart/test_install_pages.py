"""The commands of docs/install.md and docs/upgrade.md, run word for word, section by section.

Commands that build and push images are left out.

A local process with the Deployment's command and environment stands in for the operator's pod. The nodes are kwok's, so
images need not exist.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.controlplane.binaries import find_binaries
from support.controlplane.charts.helm import CHART, NAMESPACE, RELEASE, ROOT
from support.controlplane.charts.operator_pods import OperatorPods
from support.controlplane.control_plane import ControlPlane
from support.docs.doc_examples import console_commands

pytestmark = pytest.mark.controlplane

# Commands that need a registry or build for minutes.
NOT_RUN = ("make images", "docker push")
SECTIONS = {
    f"{page}: {section}": commands
    for page in ("install", "upgrade")
    for section, commands in console_commands(ROOT / "docs" / f"{page}.md").items()
}
# What the reader has installed before a section.
BEFORE = {
    "install: Uninstall": [
        "helm install omnipipeline helm/omnipipeline --namespace omnipipeline-system --create-namespace --wait"
    ],
    "install: Uninstall with plain manifests": ["kubectl apply -k manifests"],
}


@pytest.fixture
def environment(plane: ControlPlane, tmp_path: Path) -> dict[str, str]:
    """Returns a user's environment: helm and kubectl on the PATH, and a kubeconfig."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, path in find_binaries("helm", "kubectl").items():
        (folder / name).symlink_to(path)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path), "KUBECONFIG": str(plane.kubeconfig)}


@pytest.fixture
def pods(plane: ControlPlane, tmp_path: Path) -> Iterator[OperatorPods]:
    """Yields the operator's pods on an empty cluster."""
    with OperatorPods(plane, tmp_path) as pods:
        yield pods


@pytest.fixture
def old_release(pods: OperatorPods, environment: dict[str, str], tmp_path: Path) -> None:
    """Installs a copy of the chart with an earlier version number, which docs/upgrade.md starts from."""
    chart = tmp_path / "old" / RELEASE
    shutil.copytree(CHART, chart)
    about = yaml.safe_load((chart / "Chart.yaml").read_text())
    (chart / "Chart.yaml").write_text(yaml.safe_dump({**about, "version": "0.0.9"}))
    install = f"helm install {RELEASE} {chart} --namespace {NAMESPACE} --create-namespace --wait --set replicas=2"
    run_all([install], pods, environment)


def run_all(commands: list[str], pods: OperatorPods, environment: dict[str, str]) -> None:
    for command in commands:
        if command.startswith(NOT_RUN):
            continue
        done = pods.run(command, environment)
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"


@pytest.mark.parametrize("name", [name for name in SECTIONS if name.startswith("install") and "Images" not in name])
def test_install_page(name: str, pods: OperatorPods, environment: dict[str, str]) -> None:
    run_all([*BEFORE.get(name, ()), *SECTIONS[name]], pods, environment)


@pytest.mark.usefixtures("old_release")
def test_upgrade_page(pods: OperatorPods, environment: dict[str, str]) -> None:
    sections = [commands for name, commands in SECTIONS.items() if name.startswith("upgrade")]
    assert len(sections) == 2
    for commands in sections:
        run_all(commands, pods, environment)


def test_what_is_listed_as_installed_is_what_is_installed() -> None:
    section = (ROOT / "docs" / "install.md").read_text().split("## What is installed\n")[1].split("\n## ")[0]
    listed = {kind for cell in re.findall(r"^\| ([A-Z][\w, ]+) \|", section, re.MULTILINE) for kind in cell.split(", ")}
    documents = yaml.safe_load_all((ROOT / "manifests" / "operator.yaml").read_text())
    kinds = {item["kind"] for item in documents} | {"CustomResourceDefinition"}
    assert kinds - {"Namespace"} == listed - {"PodDisruptionBudget"}
    for crd in (f"{file.stem}.omnipipeline.io" for file in (ROOT / "manifests" / "crd").iterdir()):
        assert f"`{crd}`" in section
        assert any(crd in command for command in SECTIONS["install: Uninstall"])


def test_every_section_with_commands_is_run() -> None:
    assert len(SECTIONS) >= 8
    for page in ("install", "upgrade"):
        shown = re.findall(r"^\$ (.*)", (ROOT / "docs" / f"{page}.md").read_text(), re.MULTILINE)
        run = [command for name, commands in SECTIONS.items() if name.startswith(page) for command in commands]
        assert len(run) == len(shown)
