"""The Go programs of the test control plane and the test node, and an OpenTelemetry collector: found or built.

A program is looked up in $KUBEBUILDER_ASSETS, then in the cache
`${XDG_CACHE_HOME:-~/.cache}/omnipipeline/go/MODULE-HASH`, and otherwise built into that cache. Each module below
tests/controlplane/go has its own cache folder. HASH covers the module's files, programs and flags, so a changed version
gets a new folder and does not affect other modules. This module uses only the standard library.

    python -m support.controlplane.binaries [NAME ...]     builds missing programs, prints one path a line
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from support.controlplane.go_build import BuildError, Program, build_programs
from support.processes.build_cache import cache_root, say

GO_MODULES = Path(__file__).resolve().parents[2] / "controlplane" / "go"
KUBERNETES_VERSION = "v1.34.4"


@dataclass(frozen=True)
class Module:
    """A folder below tests/controlplane/go whose go.mod pins versions, and the programs that are built from it.

    With `by_name`, its programs are built only when requested by name, because only a real node (tests/cluster) or
    `make full` needs them.
    """

    name: str
    programs: tuple[Program, ...]
    by_name: bool = False


_KUBERNETES_LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"


def _kubernetes(*names: str) -> tuple[Program, ...]:
    return tuple(Program(name, f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS) for name in names)


MODULES = (
    # The API server is first, because the other programs share most of its packages.
    Module("kubernetes", _kubernetes("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")),
    Module("etcd", (Program("etcd", "go.etcd.io/etcd/server/v3"),)),
    Module("kwok", (Program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),)),
    Module("kubeconform", (Program("kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),)),
    Module("helm", (Program("helm", "helm.sh/helm/v3/cmd/helm"),)),
    Module("node", _kubernetes("kubelet", "kube-proxy"), by_name=True),
    Module("pause", (Program("pause", "."),), by_name=True),
    Module("coredns", (Program("coredns", "."),), by_name=True),
    Module(
        "buildkit",
        tuple(Program(name, f"github.com/moby/buildkit/cmd/{name}") for name in ("buildkitd", "buildctl")),
        by_name=True,
    ),
    Module("otelcol", (Program("otelcol", "."),), by_name=True),
)
_MODULE_OF = {program.name: module for module in MODULES for program in module.programs}
NAMES = tuple(_MODULE_OF)
CONTROL_PLANE = tuple(name for name, module in _MODULE_OF.items() if not module.by_name)


class BinariesMissingError(RuntimeError):
    """A program was not found and cannot be built. The message says what to install."""


def find_binaries(*names: str, build: bool = True) -> dict[str, Path]:
    """Returns the programs' paths by name. Default: the programs of the control plane.

    Raises:
        BinariesMissingError: a program is missing, and `build` is False or it cannot be built.
        ValueError: no module builds a program of that name.
    """
    wanted = names or CONTROL_PLANE
    if unknown := set(wanted) - set(NAMES):
        raise ValueError(f"not built here: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    found = _from_assets(wanted, os.environ)
    missing = [name for name in wanted if name not in found]
    modules = {_MODULE_OF[name].name: _MODULE_OF[name] for name in missing}
    if absent := [module for module in modules.values() if not cache_directory(module).is_dir()]:
        if not build:
            lacking = ", ".join(name for name in missing if _MODULE_OF[name] in absent)
            raise BinariesMissingError(f"{lacking} not found: run `make controlplane` (once, about 9 minutes)")
        _build(absent)
    found |= {name: cache_directory(_MODULE_OF[name]) / name for name in missing}
    return {name: found[name] for name in wanted}


def list_missing(names: Iterable[str]) -> set[str]:
    """Returns the programs that find_binaries would have to build."""
    return {
        name
        for name in names
        if not _from_assets((name,), os.environ) and not cache_directory(_MODULE_OF[name]).is_dir()
    }


def cache_directory(module: Module) -> Path:
    """Returns the cache folder of these versions of a module. The folder exists only if it is complete."""
    digest = hashlib.sha256(f"{platform.machine()} {module.programs}".encode())
    for file in sorted((GO_MODULES / module.name).iterdir()):
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return cache_root() / "go" / f"{module.name}-{digest.hexdigest()[:16]}"


def _from_assets(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, Path]:
    assets = environment.get("KUBEBUILDER_ASSETS")
    if not assets:
        return {}
    return {name: path for name in names if os.access(path := Path(assets).resolve() / name, os.X_OK)}


def _build(modules: list[Module]) -> None:
    remedy = (
        f"Or set KUBEBUILDER_ASSETS to a folder that holds {', '.join(CONTROL_PLANE)} "
        "(setup-envtest brings etcd, kube-apiserver and kubectl)."
    )
    for module in modules:
        try:
            build_programs(GO_MODULES / module.name, module.programs, cache_directory(module))
        except BuildError as error:
            raise BinariesMissingError(f"{error} {remedy}") from error


def main() -> int:
    """Builds missing programs and prints all paths. Returns the exit status."""
    try:
        found = find_binaries(*sys.argv[1:])
    except BinariesMissingError as error:
        say(str(error))
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
