"""The Go programs of the test control plane and the test node, and an OpenTelemetry collector: found or built.

A program is looked up in $KUBEBUILDER_ASSETS, then in the cache `${XDG_CACHE_HOME:-~/.cache}/omnipipeline/go`.
Otherwise setup-envtest's archive is downloaded, if it has the program and the network allows it, and what is still
missing is built with Go. A cache folder's name has a hash of the Go module's files, the programs and their flags, so a
changed version gets a new folder. This module uses only the standard library.

    python -m support.controlplane.binaries [NAME ...]     builds missing programs, prints one path a line
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from support.controlplane import envtest
from support.controlplane.go_build import SOURCE, BuildError, Program, build_programs
from support.processes.build_cache import cache_root, say

GO_MODULES = Path(__file__).resolve().parents[2] / "controlplane" / "go"
KUBERNETES_VERSION = "v1.34.4"


@dataclass(frozen=True)
class Module:
    """Programs that are built together, from a folder below tests/controlplane/go whose go.mod pins versions.

    With `by_name`, they are built only when requested by name, because only a real node (tests/cluster) or `make full`
    needs them.
    """

    name: str
    programs: tuple[Program, ...]
    by_name: bool = False
    folder: str = ""
    """The folder's name, if it is not `name`."""
    in_copy: bool = False
    """See build_programs, and find_source."""

    @property
    def path(self) -> Path:
        """Returns the folder of go.mod."""
        return GO_MODULES / (self.folder or self.name)


_KUBERNETES_LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"


def _kubernetes(*names: str) -> tuple[Program, ...]:
    return tuple(Program(name, f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS) for name in names)


MODULES = (
    # Three modules, because setup-envtest has the first one's programs, and only a real node needs the last one's.
    Module("api-server", _kubernetes("kube-apiserver", "kubectl"), folder="kubernetes"),
    Module("controllers", _kubernetes("kube-controller-manager", "kube-scheduler"), folder="kubernetes"),
    Module("etcd", (Program("etcd", "go.etcd.io/etcd/server/v3"),)),
    Module("kwok", (Program("kwok", "./cmd/kwok"),), in_copy=True),
    Module("kubeconform", (Program("kubeconform", "./cmd/kubeconform"),), in_copy=True),
    Module("helm", (Program("helm", "./cmd/helm"),), in_copy=True),
    Module("registry", (Program("crane", "./cmd/crane"),), in_copy=True),
    Module("kstatus", (Program("kstatus", "."),)),
    Module("node", _kubernetes("kubelet", "kube-proxy"), by_name=True, folder="kubernetes"),
    Module("pause", (Program("pause", "."),), by_name=True),
    Module("coredns", (Program("coredns", "."),), by_name=True),
    Module(
        "buildkit",
        tuple(Program(name, f"./cmd/{name}") for name in ("buildkitd", "buildctl")),
        by_name=True,
        in_copy=True,
    ),
    Module("otelcol", (Program("otelcol", "."),), by_name=True),
    Module("grafana", (Program("grafana-schema", "."),), by_name=True),
    Module("gateway-api", (), by_name=True, in_copy=True),
    Module(
        "keda",
        (Program("keda", "./cmd/operator"), Program("keda-adapter", "./cmd/adapter")),
        by_name=True,
        in_copy=True,
    ),
    Module("metrics-server", (Program("metrics-server", "./cmd/metrics-server"),), by_name=True, in_copy=True),
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
    found = {name: path for name in wanted if (path := _find(name))}
    if missing := [name for name in wanted if name not in found]:
        if not build:
            raise BinariesMissingError(f"{', '.join(missing)} not found: run `make controlplane` (once, minutes)")
        if set(missing) & set(envtest.PROGRAMS):
            envtest.download()
        modules = {_MODULE_OF[name].name: _MODULE_OF[name] for name in missing if not _find(name)}
        _build(list(modules.values()))
        found |= {name: path for name in missing if (path := _find(name))}
    return {name: found[name] for name in wanted}


def find_source(name: str) -> Path:
    """Returns the folder with the files of a module that is built in_copy.
    Raises:
        BinariesMissingError: it is not in the cache, and cannot be downloaded.
    """
    (module,) = (module for module in MODULES if module.name == name)
    if not cache_directory(module).is_dir():
        _build([module])
    return cache_directory(module) / SOURCE


def gateway_api_crds() -> list[Path]:
    """Returns the published CRDs of what the operator and the chart write, of the Gateway API's standard channel."""
    folder = find_source("gateway-api") / "config" / "crd" / "standard"
    kinds = ("grpcroutes", "httproutes", "backendtlspolicies")
    return [folder / f"gateway.networking.k8s.io_{plural}.yaml" for plural in kinds]


def list_missing(names: Iterable[str]) -> set[str]:
    """Returns the programs that find_binaries would have to download or build."""
    return {name for name in names if not _find(name)}


def cache_directory(module: Module) -> Path:
    """Returns the cache folder of these versions of a module. The folder exists only if it is complete."""
    digest = hashlib.sha256(f"{platform.machine()} {module.programs}".encode())
    for file in sorted(module.path.iterdir()):
        text = file.read_text()
        # What a go.mod says of itself builds nothing.
        text = re.sub(r"\s*//.*", "", text) if file.name == "go.mod" else text
        digest.update(f"{file.name}\n{text.strip()}".encode())
    return cache_root() / "go" / f"{module.name}-{digest.hexdigest()[:16]}"


def _find(name: str) -> Path | None:
    """Returns the path of a program from $KUBEBUILDER_ASSETS or the cache: built, or else downloaded."""
    folders = [cache_directory(_MODULE_OF[name])]
    if assets := os.environ.get("KUBEBUILDER_ASSETS"):
        folders.insert(0, Path(assets).resolve())
    if name in envtest.PROGRAMS:
        folders.append(envtest.folder())
    return next((folder / name for folder in folders if os.access(folder / name, os.X_OK)), None)


def _build(modules: list[Module]) -> None:
    remedy = (
        f"Or set KUBEBUILDER_ASSETS to a folder that holds {', '.join(CONTROL_PLANE)} "
        "(setup-envtest brings etcd, kube-apiserver and kubectl)."
    )
    for module in modules:
        try:
            build_programs(module.path, module.programs, cache_directory(module), in_copy=module.in_copy)
        except BuildError as error:
            raise BinariesMissingError(f"{error} {remedy}") from error


def main() -> int:
    """Builds missing programs and prints all paths. Returns the exit status."""
    try:
        found = find_binaries(*sys.argv[1:])
        if not sys.argv[1:]:
            find_source("gateway-api")
    except BinariesMissingError as error:
        say(str(error))
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
