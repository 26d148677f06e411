"""Writes manifests/install.yaml: the namespace omnipipeline-system, and the chart rendered into it with default values.

What only Helm uses is left out: Helm's labels and annotations, and the pod of `helm test`. `--check` writes nothing and
fails if the file is stale.

    scripts/render_manifests.py --helm PATH [--check]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm" / "omnipipeline"
INSTALL = ROOT / "manifests" / "install.yaml"
RELEASE = "omnipipeline"
NAMESPACE = "omnipipeline-system"
# A helm binary from `go install` assumes an old version of Kubernetes, which the chart refuses. The version has no
# other effect.
KUBE_VERSION = "1.34.0"
_HEADER = (
    "# The operator, its CRD and its rights: what the chart helm/omnipipeline renders by default. Made by\n"
    "# `make manifests`; change it by a kustomization (manifests/kustomization.yaml), not here: see docs/install.md.\n"
    "#   kubectl apply -f manifests/install.yaml\n"
)
_HELMS_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by")

Manifest = dict[str, Any]


def render_chart(helm: Path) -> list[Manifest]:
    """Returns the objects of the chart with its default values, including the pod of `helm test`."""
    command = [str(helm), "template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--kube-version", KUBE_VERSION]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603 - our own chart
    return [document for document in yaml.safe_load_all(text) if document]


def is_hook(manifest: Manifest) -> bool:
    """Returns whether the object is a Helm hook, which only Helm creates."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def strip_helm(manifest: Manifest) -> Manifest:
    """Returns the object without Helm's labels and annotations, in its own metadata and in that of its pod template."""
    stripped = {**manifest, "metadata": _strip_metadata(manifest["metadata"])}
    template = manifest.get("spec", {}).get("template")
    if template:
        stripped["spec"] = {
            **manifest["spec"],
            "template": {**template, "metadata": _strip_metadata(template["metadata"])},
        }
    return stripped


def _strip_metadata(metadata: Manifest) -> Manifest:
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key not in _HELMS_LABELS}
    annotations = {k: v for k, v in metadata.get("annotations", {}).items() if not k.startswith("helm.sh/")}
    rest = {key: value for key, value in metadata.items() if key not in ("labels", "annotations")}
    return rest | ({"labels": labels} if labels else {}) | ({"annotations": annotations} if annotations else {})


def build_namespace() -> Manifest:
    """Returns the operator's namespace, which enforces the strictest Pod Security Standard, `restricted`."""
    labels = {"app.kubernetes.io/part-of": "omnipipeline", "pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def render_install(helm: Path) -> str:
    """Returns the text of manifests/install.yaml."""
    manifests = [build_namespace(), *(strip_helm(item) for item in render_chart(helm) if not is_hook(item))]
    dumped = (yaml.safe_dump(item, sort_keys=False, width=120, allow_unicode=True) for item in manifests)
    return _HEADER + "".join(f"---\n{text}" for text in dumped)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", type=Path, required=True, help="the helm program")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the file is stale")
    options = parser.parse_args()
    text = render_install(options.helm)
    stale = not INSTALL.exists() or INSTALL.read_text(encoding="utf-8") != text
    if stale and options.check:
        sys.stderr.write("stale: manifests/install.yaml; run `make manifests`\n")
        return 1
    if stale:
        INSTALL.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
