"""Third-party clients, each in its own environment in the cache, with a program that uses the client, and programs of
Debian's packages.

`tests/data/clients/NAME` has the program `cases.*` and its requirements in package.json or requirements.txt.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from support.processes.bare_venv import ROOT, find_uv, run_bare
from support.processes.build_cache import cache_root, fill_once, say

CLIENTS = ROOT / "tests" / "data" / "clients"
INSTALL_S = 550


def run_cases(name: str, folder: Path, *arguments: str, program: str = "cases") -> dict[str, Any]:
    """Runs a client's program. Returns the object that it prints, with an entry for each case.

    program: name of its file. Raises AssertionError if the program fails, and RuntimeError if the client cannot be
    installed.
    """
    client = CLIENTS / name
    if (client / "package.json").exists():
        installed = _install(name, "package.json", [_find("npm"), "install", "--no-audit", "--no-fund"])
        # Node looks for packages in the folder of the program.
        (folder / "node_modules").symlink_to(installed / "node_modules")
        shutil.copy(client / "package.json", folder)
        command = [_find("node"), str(shutil.copy(client / f"{program}.js", folder))]
    else:
        installed = install_environment(name)
        command = [str(installed / "bin" / "python"), str(client / f"{program}.py")]
    done = run_bare([*command, *arguments], folder)
    if done.returncode:
        raise AssertionError(f"{name} ended with {done.returncode}:\n{done.stderr[-4000:]}")
    gave: dict[str, Any] = json.loads(done.stdout)
    return gave


@cache
def find_debian_programs(package: str, *programs: str) -> Path:
    """Returns the folder of programs. Downloads Debian's package if they are not installed.

    Raises AssertionError if the download fails; the message says what to install.
    """
    command = ["sh", str(ROOT / "tools" / "debian_programs.sh"), package, *programs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def install_package(name: str) -> Path:
    """Returns node_modules with the packages of tests/data/clients/NAME/package.json. Installs them the first time.

    Raises RuntimeError.
    """
    return _install(name, "package.json", [_find("npm"), "install", "--no-audit", "--no-fund"]) / "node_modules"


def install_environment(name: str) -> Path:
    """Returns the virtual environment with the packages of tests/data/clients/NAME/requirements.txt, likewise."""
    return _install(name, "requirements.txt", [find_uv(), "pip", "install", "--quiet", "--requirements"])


def _install(name: str, list_name: str, command: list[str]) -> Path:
    """Returns the folder with a client's requirements. Installs them the first time."""
    wanted = CLIENTS / name / list_name
    platform_key = f"{platform.machine()} {sys.version_info[:2]}".encode()
    digest = hashlib.sha256(platform_key + wanted.read_bytes()).hexdigest()
    folder = cache_root() / "clients" / f"{name}-{digest[:16]}"

    def fill(building: Path) -> None:
        say(f"installing {name} into {folder} (once)")
        if list_name == "package.json":
            shutil.copy(wanted, building)
            _run(command, building)
        else:
            _run(
                [find_uv(), "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(building)], building
            )
            _run([*command, str(wanted), "--python", str(building / "bin" / "python")], building)

    if not folder.is_dir():
        fill_once(folder, name, fill)
    return folder


def _run(command: list[str], cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-4000:]}")


def _find(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise RuntimeError(f"{program} is not on PATH: apt-get install nodejs npm (Node 20 or later)")
    return found
