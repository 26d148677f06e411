"""A virtual environment with the transformers of the release, kept outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

RELEASE = "4.52.4"
"""The first version that holds the released Qwen2.5-Omni, as its model card asks."""


def release_python() -> Path:
    """Returns the interpreter of an environment with transformers of the release; makes it if need be.

    About 6 GB, a minute where the wheels are cached. torch is the version that is installed here, so that differences
    are transformers' own. Raises RuntimeError without uv, CalledProcessError if the installation fails.
    """
    torch, torchvision = (version(name).partition("+")[0] for name in ("torch", "torchvision"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline"
    folder = cache / f"oracle-transformers-{RELEASE}-torch-{torch}"
    python, stamp = folder / "bin" / "python", folder / ".complete"
    if stamp.exists():
        return python
    uv = shutil.which("uv") or str(cache / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        raise RuntimeError("uv is missing; scripts/setup.sh installs it")
    print(f"installing transformers {RELEASE} into {folder}", file=sys.stderr)
    packages = [f"transformers=={RELEASE}", f"torch=={torch}", f"torchvision=={torchvision}", "pillow", "numpy"]
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
    stamp.touch()
    return python
