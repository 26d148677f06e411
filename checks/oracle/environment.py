"""A virtual environment with the release's version of transformers, kept outside the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

RELEASE = "4.52.4"
"""The first transformers version that has the released Qwen2.5-Omni. The model card asks for this version."""


def release_python() -> Path:
    """Returns the interpreter of an environment with transformers RELEASE. Creates the environment if necessary.

    Creating it takes about 6 GB, and a minute if the wheels are cached. torch has the version installed here, so that
    all differences come from transformers. Raises RuntimeError without uv, and CalledProcessError if the installation
    fails.
    """
    torch, torchvision = (version(name).partition("+")[0] for name in ("torch", "torchvision"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omnipipeline"
    folder = cache / f"oracle-transformers-{RELEASE}-torch-{torch}"
    python, stamp = folder / "bin" / "python", folder / ".complete"
    if stamp.exists():
        return python
    uv = shutil.which("uv") or str(cache / "uv" / "bin" / "uv")
    if not Path(uv).exists():
        raise RuntimeError("uv is missing; tools/setup.sh installs it")
    print(f"installing transformers {RELEASE} into {folder}", file=sys.stderr)
    packages = [f"transformers=={RELEASE}", f"torch=={torch}", f"torchvision=={torchvision}", "pillow", "numpy"]
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, str(folder)], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), *packages], check=True)
    stamp.touch()
    return python
