"""Builds the package and installs it into virtual environments that do not use the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def find_uv() -> str:
    """Returns the path of the uv that tools/setup.sh used: from PATH, or else from the project's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "omnipipeline"
    return shutil.which("uv") or str(cache / "uv" / "bin" / "uv")


def build_distributions(out: Path, project: Path = ROOT) -> tuple[Path, Path]:
    """Builds both distributions of a project into `out`. Returns the sdist, and the wheel that was built from it."""
    _uv("build", "--quiet", "--out-dir", str(out), str(project))
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def make_venv(folder: Path, *requirements: str) -> Path:
    """Makes a virtual environment with requirements, at the versions of constraints/cpu.txt. Returns its bin folder."""
    _uv("venv", "--quiet", "--python", str(ROOT / ".venv" / "bin" / "python"), str(folder))
    python = str(folder / "bin" / "python")
    constraints = str(ROOT / "constraints" / "cpu.txt")
    _uv("pip", "install", "--quiet", "--python", python, "--constraints", constraints, *requirements)
    return folder / "bin"


def run_bare(command: list[str], cwd: Path, *, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command with PATH, HOME, LANG and `environment` as its only environment variables."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return subprocess.run(
        command, cwd=cwd, env=kept | environment, input=stdin, capture_output=True, text=True, timeout=500, check=False
    )


def _uv(*arguments: str) -> None:
    done = subprocess.run([find_uv(), *arguments], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(arguments)}: {done.stderr}")
