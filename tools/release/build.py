"""Builds what a release consists of into one folder, and checks it.

krew installs no Python packages, so its plugin of kubectl is a program that runs an installed `omnipipe`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import yaml
from tools.release.distributions import DISTRIBUTIONS, HOME, write_project
from tools.release.version import ROOT, ReleaseError, notes_of, read_version
from tools.render_manifests import render_install

ARCHIVE = "kubectl-omni.tar.gz"
MANIFEST = "omni.krew.yaml"
_PROGRAM = """#!/bin/sh
# kubectl omni: runs omnipipe, with the name that its help shows.
if ! command -v omnipipe >/dev/null; then
  echo "error: kubectl omni needs omnipipe; pip install 'omnipipeline[cli,cluster]==VERSION'" >&2
  exit 1
fi
exec omnipipe "$@"
"""


def write_plugin(out: Path, version: str, license_file: Path) -> None:
    """Write the archive and the manifest into `out`. The same arguments give the same bytes."""
    files = {"kubectl-omni": _PROGRAM.replace("VERSION", version).encode(), "LICENSE": license_file.read_bytes()}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755 if name == "kubectl-omni" else 0o644
            archive.addfile(member, io.BytesIO(content))
    (out / ARCHIVE).write_bytes(gzip.compress(packed.getvalue(), mtime=0))
    digest = hashlib.sha256((out / ARCHIVE).read_bytes()).hexdigest()
    manifest = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "omni"},
        "spec": {
            "version": f"v{version}",
            "homepage": HOME,
            "shortDescription": "Ask, check and watch any-to-any model pipelines",
            "description": "Sends requests to pipelines, shows their stages, logs and load, and checks a cluster.\n",
            "caveats": f"Needs Python: pip install 'omnipipeline[cli,cluster]=={version}'\n",
            "platforms": [
                {
                    "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]},
                    "uri": f"{HOME}/releases/v{version}/{ARCHIVE}",
                    "sha256": digest,
                    "bin": "kubectl-omni",
                    "files": [{"from": name, "to": "."} for name in files],
                }
            ],
        },
    }
    (out / MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False), encoding="utf-8")


CHART = ROOT / "helm" / "omnipipeline"
TWINE = "twine==7.0.0"
WHEEL_CHECK = "check-wheel-contents==0.6.3"
_SUMS = "SHA256SUMS"


def find_uv() -> str:
    """Returns the path of the uv that tools/setup.sh used: from PATH, or else from the project's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omnipipeline"
    return shutil.which("uv") or str(cache / "uv" / "bin" / "uv")


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Returns what a command printed on stdout, then on stderr. Raises ReleaseError, with its output, if it fails."""
    # The time in archives is that of the commit, so that the same commit gives the same files.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": _commit_time()}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _commit_time() -> str:
    done = subprocess.run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True)
    return done.stdout.strip() or "315532800"  # 1980, the first year that a wheel can state


def build_packages(out: Path, names: Iterable[str] = ()) -> list[Path]:
    """Build sdist and wheel of each distribution, or of those named, into `out`. A wheel is built from its sdist.

    Returns the files, sorted. Raises ReleaseError.
    """
    wanted = set(names) or {one.name for one in DISTRIBUTIONS}
    root = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for one in DISTRIBUTIONS:
            if one.name in wanted:
                project = Path(folder) / one.name
                project.mkdir()
                write_project(one, root, ROOT, project)
                run(find_uv(), "build", "--quiet", "--out-dir", out, project)
    (out / ".gitignore").unlink(missing_ok=True)  # uv writes it
    return sorted([*out.glob("*.whl"), *out.glob("*.tar.gz")])


def check_packages(files: Iterable[Path]) -> None:
    """Check that the index would take the files and render their READMEs, and what the wheels contain.

    Raises ReleaseError with what the checkers say.
    """
    listed = list(files)
    run(find_uv(), "tool", "run", "--from", TWINE, "twine", "check", "--strict", *listed)
    # W009: the client's wheel has two packages, its API and the contracts below it.
    wheels = [file for file in listed if file.suffix == ".whl"]
    run(find_uv(), "tool", "run", "--from", WHEEL_CHECK, "check-wheel-contents", "--ignore", "W009", *wheels)


def build_chart(out: Path, helm: Path, registry: str) -> Path:
    """Package the chart, whose images come from `registry` by default; empty: from the container runtime's default.

    Also writes install.yaml, rendered from that chart, and the CRD, beside it. Returns the package's path.
    """
    version = read_version()
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / "omnipipeline"
        shutil.copytree(CHART, chart)
        values = chart / "values.yaml"
        text = values.read_text(encoding="utf-8")
        changed = text.replace('\nimageRegistry: ""\n', f'\nimageRegistry: "{registry}"\n')
        if registry and changed == text:
            raise ReleaseError('helm/omnipipeline/values.yaml has no line `imageRegistry: ""`')
        values.write_text(changed, encoding="utf-8")
        run(helm, "package", chart, "--destination", out)
        (out / "install.yaml").write_text(render_install(helm, chart), encoding="utf-8")
    crds = sorted((ROOT / "manifests" / "crd").glob("*.yaml"))
    (out / "crds.yaml").write_text("---\n".join(file.read_text(encoding="utf-8") for file in crds), encoding="utf-8")
    return out / f"omnipipeline-{version}.tgz"


def build_release(out: Path, helm: Path, registry: str, *, bills: bool) -> list[Path]:
    """Build everything into `out`, which must be empty or missing. Returns the files. Raises ReleaseError.

    `bills`: also write the bills of materials, for which the packages of the images must be installed here.
    """
    if out.exists() and any(out.iterdir()):
        raise ReleaseError(f"{out} is not empty; remove it first")
    out.mkdir(parents=True, exist_ok=True)
    (out / "NOTES.md").write_text(
        notes_of((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), read_version()), encoding="utf-8"
    )
    check_packages(build_packages(out))
    build_chart(out, helm, registry)
    write_plugin(out, read_version(), ROOT / "LICENSE")
    if bills:
        run(sys.executable, "-m", "tools.sbom", "--out", out)
    _check_versions(out)
    files = sorted(file for file in out.iterdir() if file.name != _SUMS)
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (out / _SUMS).write_text("".join(sums), encoding="utf-8")
    return [*files, out / _SUMS]


def _check_versions(out: Path) -> None:
    """Check that install.yaml names images of this version only. Raises ReleaseError."""
    version = read_version()
    objects = [one for one in yaml.safe_load_all((out / "install.yaml").read_text(encoding="utf-8")) if one]
    (deployment,) = [one for one in objects if one["kind"] == "Deployment"]
    images = [container["image"] for container in deployment["spec"]["template"]["spec"]["containers"]]
    if any(not image.endswith(f":{version}") for image in images):
        raise ReleaseError(
            f"install.yaml names {', '.join(images)}, and the version is {version}: run `make manifests`"
        )


def push_chart(out: Path, helm: Path, registry: str, *, plain_http: bool) -> str:
    """Push the chart's package to `registry`/charts, an OCI registry. Returns its reference with the digest."""
    (package,) = out.glob("omnipipeline-*.tgz")
    flags = ["--plain-http"] if plain_http else []
    said = run(helm, "push", package, f"oci://{registry}/charts", *flags)
    # Helm 3 reports this on stderr.
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    return f"{lines['Pushed']}@{lines['Digest']}"


PUSHED = (
    "omnipipeline-operator:{version}",
    "omnipipeline-stage:{version}",
    "omnipipeline-stage:{version}-cpu",
    "omnipipeline-stage:{version}-sim",
    "omnipipeline-demo:{version}",
    "charts/omnipipeline:{version}",
)
"""What `make release-push` pushes, below the registry (names: tools/images.sh)."""


def sign(registry: str, cosign: Path, *, key: Path | None = None, plain_http: bool = False) -> list[str]:
    """Sign what was pushed to `registry`, each platform of an image too. Returns the references. Raises ReleaseError.

    key: a private key of cosign; its signatures go into no public log. Without one, Sigstore signs for the identity
    that the environment has (in a workflow: the workflow's), and its log is public.
    """
    flags = ["--key", key, "--tlog-upload=false", "--use-signing-config=false"] if key else []
    flags += ["--allow-http-registry"] if plain_http else []
    references = [f"{registry}/{name.format(version=read_version())}" for name in PUSHED]
    for reference in references:
        run(cosign, "sign", "--yes", "--recursive", *flags, reference)
    return references
