"""The programs of the test control plane: found, or built from their Go modules.

Order: $KUBEBUILDER_ASSETS (what lies there), then the cache
`${XDG_CACHE_HOME:-~/.cache}/omnipipeline/controlplane-HASH`, then a build into that cache. HASH covers every go.mod,
go.sum and flag, so a change of a version makes a new folder and an old one is never half new.
Only the standard library is used: `make controlplane` runs this before anything else.

    python -m support.controlplane.binaries [NAME ...]     builds what is missing, prints one path a line
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

GO_MODULES = Path(__file__).resolve().parents[2] / "controlplane" / "go"
MINIMUM_GO = (1, 24)
KUBERNETES_VERSION = "v1.34.4"


@dataclass(frozen=True)
class Target:
    """One program: its Go package, and the folder below tests/controlplane/go whose go.mod pins it."""

    name: str
    module: str
    package: str
    ldflags: str = "-s -w"


_KUBERNETES_LDFLAGS = f"-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
# The API server first: the others share most of its packages.
TARGETS = (
    *(
        Target(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS)
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    ),
    Target("etcd", "etcd", "go.etcd.io/etcd/server/v3"),
    Target("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok"),
    Target("kubeconform", "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform"),
)
NAMES = tuple(target.name for target in TARGETS)


class BinariesMissingError(RuntimeError):
    """A program is neither there nor can it be built; the message says what to install."""


def find_binaries(*names: str, build: bool = True) -> dict[str, Path]:
    """Paths of the programs by name (all of them when no name is given).

    Raises:
        BinariesMissingError: something is missing and cannot be (or, with build=False, may not be) built.
    """
    wanted = names or NAMES
    if unknown := set(wanted) - set(NAMES):
        raise ValueError(f"not built here: {', '.join(sorted(unknown))}; known: {', '.join(NAMES)}")
    found = _from_assets(wanted, os.environ)
    if missing := [name for name in wanted if name not in found]:
        cache = cache_directory()
        if not cache.is_dir():
            if not build:
                raise BinariesMissingError(
                    f"{', '.join(missing)} not found: run `make controlplane` (once, ~7 minutes)"
                )
            _build_all(cache)
        found |= {name: cache / name for name in missing}
    return {name: found[name] for name in wanted}


def cache_directory() -> Path:
    """Where these very versions belong; it exists only when it is complete."""
    digest = hashlib.sha256(f"{platform.machine()} {TARGETS}".encode())
    for file in sorted(GO_MODULES.glob("*/go.*")):
        digest.update(f"{file.parent.name}/{file.name}\n".encode() + file.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "omnipipeline" / f"controlplane-{digest.hexdigest()[:16]}"


def _from_assets(names: tuple[str, ...], environment: Mapping[str, str]) -> dict[str, Path]:
    assets = environment.get("KUBEBUILDER_ASSETS")
    if not assets:
        return {}
    return {name: path for name in names if os.access(path := Path(assets).resolve() / name, os.X_OK)}


def _build_all(cache: Path) -> None:
    """Build into a folder beside `cache` and rename it; a second builder waits and finds it done."""
    go = _find_go()
    cache.parent.mkdir(parents=True, exist_ok=True)
    with _lock(cache.parent / "controlplane.lock"):
        if cache.is_dir():
            return
        for leftover in cache.parent.glob("controlplane-*.building"):
            shutil.rmtree(leftover, ignore_errors=True)
        building = cache.with_name(f"{cache.name}.building")
        building.mkdir()
        _say(f"building the test control plane into {cache} (once, about 7 minutes on 2 cores)")
        for index, target in enumerate(TARGETS, start=1):
            _build(go, target, building, f"[{index}/{len(TARGETS)}] {target.name}")
        building.rename(cache)
        _say("the test control plane is built")


def _build(go: str, target: Target, output: Path, label: str) -> None:
    command = [go, "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", target.ldflags]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "-o", str(output / target.name), target.package],
        cwd=GO_MODULES / target.module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines: list[str] = []
        done = threading.Event()
        reporter = threading.Thread(target=_report, args=(label, lines, started, done), daemon=True)
        reporter.start()
        lines.extend(process.stdout or ())
        done.set()
        reporter.join()
    if process.returncode:
        raise BinariesMissingError(f"{' '.join(command)} {target.package} failed:\n{''.join(lines[-20:])}")
    _say(f"{label}: {time.monotonic() - started:.0f} s")


def _report(label: str, lines: list[str], started: float, done: threading.Event) -> None:
    while not done.wait(15):
        _say(f"{label}: {len(lines)} packages compiled, {time.monotonic() - started:.0f} s")


def _find_go() -> str:
    remedy = (
        f"The control plane of the tests is built with Go >= {MINIMUM_GO[0]}.{MINIMUM_GO[1]} "
        "(https://go.dev/dl, or your distribution's package). Or set KUBEBUILDER_ASSETS to a folder that holds "
        f"{', '.join(NAMES)} (setup-envtest brings etcd, kube-apiserver and kubectl)."
    )
    go = shutil.which("go")
    if go is None:
        raise BinariesMissingError(f"go is not on PATH. {remedy}")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"go(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < MINIMUM_GO:
        raise BinariesMissingError(f"{go} is {version.strip()}, too old. {remedy}")
    return go


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another build of the test control plane is running: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _say(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def main() -> int:
    """Build what is missing; print the paths."""
    try:
        found = find_binaries(*sys.argv[1:])
    except BinariesMissingError as error:
        _say(str(error))
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in found.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
