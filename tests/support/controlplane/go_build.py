"""Builds the programs of one Go module into a cache folder: completely or not at all, one builder at a time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.processes.build_cache import fill_once, say

MINIMUM_GO = (1, 24)


@dataclass(frozen=True)
class Program:
    """One program: its file name, its Go package and its linker flags."""

    name: str
    package: str
    ldflags: str = "-s -w"


class BuildError(RuntimeError):
    """Go is missing or too old, or the build failed. The message says which."""


SOURCE = "source"
"""Folder of a cache folder with the copied source of its programs."""


def build_programs(module: Path, programs: Sequence[Program], cache: Path, *, in_copy: bool = False) -> None:
    """Builds into a temporary folder and renames that to `cache`, unless `cache` exists. A concurrent builder waits.

    in_copy: the module that go.mod requires is built in a copy of its own folder, which stays below `cache`. So its own
    go.mod and go.sum, which our go.sum vouches for, name the rest, and Go follows its replace directives.

    Raises:
        BuildError: no suitable Go was found, or the build failed.
    """
    go = _find_go()

    def fill(building: Path) -> None:
        say(f"building {', '.join(program.name for program in programs) or module.name} into {cache} (once)")
        folder = _copy_required(go, module, building / SOURCE) if in_copy else module
        for program in programs:
            _build(go, folder, program, building)

    fill_once(cache, module.name, fill)


def _copy_required(go: str, module: Path, copy: Path) -> Path:
    """Copies the module that go.mod requires, of the sum in go.sum. Returns the copy."""
    path, version = re.findall(r"^require (\S+) (\S+)$", (module / "go.mod").read_text(), re.MULTILINE)[0]
    command = [go, "mod", "download", "-json", f"{path}@{version}"]
    done = subprocess.run(command, cwd=module, capture_output=True, text=True, check=False)
    said = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in said:
        raise BuildError(f"{' '.join(command)} failed: {said.get('Error') or done.stderr}")
    # Without the modes of the module cache, whose folders nobody can delete.
    subprocess.run(["cp", "-r", "--no-preserve=mode", said["Dir"], copy], check=True)
    return copy


def _build(go: str, module: Path, program: Program, output: Path) -> None:
    command = [go, "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags", program.ldflags]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    started = time.monotonic()
    with subprocess.Popen(
        [*command, "-o", str(output / program.name), program.package],
        cwd=module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        lines: list[str] = []
        done = threading.Event()
        reporter = threading.Thread(target=_report, args=(program.name, lines, started, done), daemon=True)
        reporter.start()
        lines.extend(process.stdout or ())
        done.set()
        reporter.join()
    if process.returncode:
        raise BuildError(f"{' '.join(command)} {program.package} failed:\n{''.join(lines[-20:])}")
    say(f"{program.name}: {time.monotonic() - started:.0f} s")


def _report(name: str, lines: list[str], started: float, done: threading.Event) -> None:
    while not done.wait(15):
        say(f"{name}: {len(lines)} packages compiled, {time.monotonic() - started:.0f} s")


def _find_go() -> str:
    remedy = (
        f"The programs of the tests' cluster are built with Go >= {MINIMUM_GO[0]}.{MINIMUM_GO[1]} "
        "(https://go.dev/dl, or your distribution's package)."
    )
    go = shutil.which("go")
    if go is None:
        raise BuildError(f"go is not on PATH. {remedy}")
    version = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    match = re.match(r"go(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < MINIMUM_GO:
        raise BuildError(f"{go} is {version.strip()}, too old. {remedy}")
    return go
