"""The real helm, and the chart under test."""

from __future__ import annotations

import copy
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.release.version import read_version

from support.controlplane.binaries import KUBERNETES_VERSION, find_binaries
from support.controlplane.server.api import Manifest
from support.processes.polling import PATIENCE_S

ROOT = Path(__file__).resolve().parents[4]
CHART = ROOT / "helm" / "omnipipeline"
RELEASE = "omnipipeline"
NAMESPACE = "omnipipeline-system"
VERSION = read_version()


class UniqueKeys(yaml.CSafeLoader):  # libyaml is ten times as fast as the parser in Python
    """A YAML loader that refuses a map with a repeated key."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if repeated := {key for key in keys if keys.count(key) > 1}:
            raise yaml.constructor.ConstructorError(None, None, f"repeated: {sorted(repeated)}", node.start_mark)
        return dict(super().construct_mapping(node, deep))


class Helm:
    """Runs helm with its own home directory, on the cluster of `kubeconfig` if one is given."""

    def __init__(self, directory: Path, kubeconfig: Path | None = None) -> None:
        self._directory = directory
        self.binary = find_binaries("helm")["helm"]
        self._environment = {**os.environ, "HOME": str(directory), "HELM_NAMESPACE": NAMESPACE}
        self._environment["KUBECONFIG"] = str(kubeconfig or directory / "none")
        self._rendered: dict[str, list[Manifest]] = {}

    def run(
        self,
        *arguments: str | Path,
        values: Mapping[str, Any] | None = None,
        check: bool = True,
        timeout_s: float = PATIENCE_S,
    ) -> subprocess.CompletedProcess[str]:
        """Runs helm with `values` in a file. Returns the ended process; if it failed, `stdout` ends with its stderr.

        Raises:
            AssertionError: helm failed and `check` is set. The message has helm's output.
        """
        command = [str(self.binary), *map(str, arguments)]
        if values is not None:
            file = self._directory / "values.yaml"
            file.write_text(yaml.safe_dump(dict(values)))
            command += ["--values", str(file)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, env=self._environment, check=False
        )
        if done.returncode:
            done.stdout += done.stderr
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} -> {done.returncode}:\n{done.stdout}")
        return done

    def template(
        self, values: Mapping[str, Any] | None = None, *, release: str = RELEASE, chart: Path = CHART
    ) -> list[Manifest]:
        """Returns the rendered manifests, including hooks. helm runs only once for the same values.

        Raises:
            ConstructorError: a map has a key twice, which helm accepts and kustomize refuses.
        """
        key = repr((values or {}, release, chart))
        if key not in self._rendered:
            command = ("template", release, chart, f"--kube-version={KUBERNETES_VERSION}")
            self._rendered[key] = read_manifests(self.run(*command, values=values or {}).stdout)
        return copy.deepcopy(self._rendered[key])

    def refusal_of(self, values: Mapping[str, Any]) -> str:
        """Returns what helm says when it refuses to render these values. Raises AssertionError if it renders them."""
        done = self.run("template", RELEASE, CHART, f"--kube-version={KUBERNETES_VERSION}", values=values, check=False)
        if not done.returncode:
            raise AssertionError(f"rendered: {values}")
        return done.stdout


def read_manifests(text: str) -> list[Manifest]:
    """Returns the documents of YAML text, without empty ones."""
    return [document for document in yaml.load_all(text, Loader=UniqueKeys) if document]


def pick_one(manifests: list[Manifest], kind: str, *, suffix: str = "") -> Manifest:
    """Returns the only object of this kind with a name that ends in `suffix`.

    Raises AssertionError if there is not exactly one.
    """
    found = [item for item in manifests if item["kind"] == kind and item["metadata"]["name"].endswith(suffix)]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} objects of kind {kind} ending in {suffix!r}")
    return found[0]


def pick_operators(manifests: list[Manifest], kind: str) -> Manifest:
    """Returns the operator's only object of a kind. The gateway may have an object of the same kind, too."""
    return pick_one([item for item in manifests if not item["metadata"]["name"].endswith("-gateway")], kind)


def selectors_of(manifest: Manifest) -> list[dict[str, str]]:
    """Returns the label selectors of an object that select pods."""
    spec = manifest.get("spec", {})
    match manifest["kind"]:
        case "Service":
            return [spec["selector"]]
        case "NetworkPolicy":
            return [spec["podSelector"]["matchLabels"]]
        case "Deployment" | "PodDisruptionBudget":
            return [spec["selector"]["matchLabels"]]
        case _:
            return []


def operator_process(deployment: Manifest) -> tuple[list[str], dict[str, str]]:
    """Returns the command with its arguments, and the environment, of the operator's container."""
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = {item["name"]: item["value"] for item in container["env"]}
    return [*container["command"], *container.get("args", [])], environment
