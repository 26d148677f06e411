"""Writes one file for a machine that has torch and no network: our code, and the packages that the part `torch` needs.

    python -m benchmarks.gpu --bundle gpu-bundle.tar.gz --python 3.12       here
    tar xzf gpu-bundle.tar.gz && sh gpu-bundle/run.sh                       there: runs the checks

It needs uv here, as `make setup` does. The wheels are those that constraints/gpu.txt pins, for the given Python on
Linux x86-64.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = (
    # transformers, and the packages that it imports to build a model
    "transformers",
    "huggingface-hub",
    "tokenizers",
    "safetensors",
    "regex",
    "packaging",
    "pyyaml",
    "tqdm",
    "filelock",
    "fsspec",
    "typing-extensions",
    "numpy",
    "httpx2",
    "httpcore2",
    "h11",
    "anyio",
    "idna",
    "truststore",
    "click",
    # the packages that our own modules import
    "grpcio",
    "grpcio-status",
    "googleapis-common-protos",
    "protobuf",
    "google-crc32c",
    "msgspec",
)
CODE = ("benchmarks/gpu", "stage_server/omni_stage", "proto/omni_proto", "tests/support", "tests/data/published")
LIMIT_BYTES = 64 << 20
_RUN = """#!/bin/sh
# The torch part of `make gpu` on a machine without a network. PYTHON names a Python with torch.
here="$(cd "$(dirname "$0")" && pwd)"
PYTHONPATH="$here/code:$here/code/stage_server:$here/code/proto:$here/code/tests:$here/site" \\
  exec "${PYTHON:-python3}" -m benchmarks.gpu --part torch "$@"
"""


def pins(names: tuple[str, ...] = PACKAGES, constraints: Path = ROOT / "constraints" / "gpu.txt") -> list[str]:
    """Returns NAME==VERSION for each package. Raises ValueError if the constraints do not pin one."""
    text = constraints.read_text(encoding="utf-8")
    found = {match[1]: match[0] for match in re.finditer(r"^([a-z0-9_.-]+)==\S+", text, re.MULTILINE)}
    missing = sorted(set(names) - set(found))
    if missing:
        raise ValueError(f"constraints/gpu.txt does not pin {', '.join(missing)}")
    return [found[name] for name in names]


def write_bundle(target: Path, python: str) -> str:
    """Write the archive. Returns a line that describes it. Raises RuntimeError if it is too large or uv fails."""
    uv = shutil.which("uv") or str(Path.home() / ".cache" / "omnipipeline" / "uv" / "bin" / "uv")
    with tempfile.TemporaryDirectory() as directory:
        bundle = Path(directory) / "gpu-bundle"
        command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(bundle / "site")]
        command += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:"]
        result = subprocess.run([*command, *pins()], capture_output=True, text=True, check=False)
        if result.returncode:
            raise RuntimeError(f"uv failed: {result.stderr.strip()[-500:]}")
        trim(bundle / "site")
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc", "cluster", "controlplane", "results")
        for name in CODE:
            shutil.copytree(ROOT / name, bundle / "code" / name, ignore=ignore)
        (bundle / "code" / "benchmarks" / "__init__.py").touch()
        (bundle / "run.sh").write_text(_RUN, encoding="utf-8")
        with tarfile.open(target, "w:gz") as tar:
            tar.add(bundle, "gpu-bundle")
    size = target.stat().st_size
    if size > LIMIT_BYTES:
        raise RuntimeError(f"{target} is {size >> 20} MiB; the limit is {LIMIT_BYTES >> 20} MiB")
    there = f"tar xzf {target.name} && sh gpu-bundle/run.sh"
    return f"{target}: {size / (1 << 20):.1f} MiB for Python {python}; there: {there}"


def trim(site: Path) -> None:
    """Delete files that nothing imports: tests, launchers and bytecode."""
    for folder in [site / "bin", *site.rglob("tests"), *site.rglob("__pycache__")]:
        shutil.rmtree(folder, ignore_errors=True)
