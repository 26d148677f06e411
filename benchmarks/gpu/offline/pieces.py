"""Packs vLLM's CUDA wheel and the packages that it needs into three folders of less than 64 MiB each.

    python -m benchmarks.gpu.offline.pieces gpu-pieces --python 3.12

The wheel has 327 MB, most of it machine code for GPUs and features that the checks do not use. Left out are
FlashAttention 2 (Hopper uses version 3), the Rust server, DeepGEMM, and kernels of single models. torch, triton,
transformers and their packages are those of the machine. Every package has the version of constraints/gpu.txt.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.gpu.bundle import LIMIT_BYTES, pins, trim

PACKAGES = (
    *("annotated-types", "apache-tvm-ffi", "astor", "blake3", "cachetools", "cbor2", "cffi", "compressed-tensors"),
    *("depyf", "fastapi", "google-crc32c", "googleapis-common-protos", "grpcio"),
    *("grpcio-health-checking", "grpcio-reflection", "grpcio-status", "httpcore2", "httpx2", "ijson", "interegular"),
    *("jiter", "jsonschema", "jsonschema-specifications", "lark", "llguidance", "lm-format-enforcer", "loguru"),
    *(
        "mistral-common",
        "msgspec",
        "openai",
        "oss-harmony",
        "opentelemetry-api",
        "opentelemetry-exporter-otlp-proto-common",
    ),
    *(
        "opentelemetry-exporter-otlp-proto-grpc",
        "opentelemetry-proto",
        "opentelemetry-sdk",
        "opentelemetry-semantic-conventions",
    ),
    *(
        "opentelemetry-semantic-conventions-ai",
        "outlines-core",
        "partial-json-parser",
        "prometheus-fastapi-instrumentator",
    ),
    *(
        "protobuf",
        "py-cpuinfo",
        "pybase64",
        "pycparser",
        "pydantic",
        "pydantic-core",
        "pyzmq",
        "referencing",
        "rpds-py",
    ),
    *(
        "setproctitle",
        "sniffio",
        "soundfile",
        "soxr",
        "starlette",
        "truststore",
        "typing-inspection",
        "vllm",
        "xgrammar",
    ),
)
"""What vLLM and the stages import, less what a machine with torch, transformers and grpcio's dependencies has."""
LEFT_OUT = ("*_vllm_fa2_C*", "vllm-rs", "*_qutlass_C*", "*_flashmla*C*", "*_flashkda_C*", "*_deepselect_C*")
KERNELS, EXPERT_KERNELS = "vllm/_C_stable_libtorch.abi3.so", "vllm/_moe_C_stable_libtorch.abi3.so"


def install(site: Path, python: str) -> None:
    """Install the packages for Linux on x86-64 into a folder. Raises RuntimeError if uv fails."""
    uv = shutil.which("uv") or str(Path.home() / ".cache" / "omnipipeline" / "uv" / "bin" / "uv")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--target", str(site), "--python-version", python]
    command += ["--python-platform", "x86_64-manylinux_2_35", "--only-binary", ":all:", *pins(PACKAGES)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"uv failed: {result.stderr.strip()[-500:]}")
    trim(site)
    for pattern in LEFT_OUT:
        for file in [*site.rglob(pattern)]:
            file.unlink()
    shutil.rmtree(site / "vllm" / "third_party" / "deep_gemm", ignore_errors=True)
    shutil.rmtree(site / "mistral_common" / "data", ignore_errors=True)
    # vLLM finds our models by an entry point, which only an installed distribution has.
    ours = site / "omnipipeline-0.dist-info"
    ours.mkdir()
    (ours / "METADATA").write_text("Metadata-Version: 2.1\nName: omnipipeline\nVersion: 0\n")
    (ours / "entry_points.txt").write_text("[vllm.general_plugins]\nomnipipeline = omni_stage.models.plugin:register\n")


def pack(site: Path, target: Path, wanted: Callable[[str], bool]) -> int:
    """Write the files of a folder whose paths are wanted, as target. Returns its bytes. Raises RuntimeError if they are
    more than a piece may have."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # With this preset the pieces fit, and they are packed in two minutes.
    with tarfile.open(target, "w:xz", preset=3) as tar:
        for path in sorted(site.rglob("*")):
            name = path.relative_to(site).as_posix()
            if path.is_file() and wanted(name):
                tar.add(path, name)
    size = target.stat().st_size
    if size > LIMIT_BYTES:
        raise RuntimeError(f"{target} is {size >> 20} MiB; the limit is {LIMIT_BYTES >> 20} MiB")
    return size


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the three folders, and print the bytes of each piece."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--python", default="3.12", help="that machine's Python")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        site = Path(directory) / "site"
        install(site, options.python)
        later = ("google/protobuf/", "grpc/", EXPERT_KERNELS)
        pieces: dict[str, Callable[[str], bool]] = {
            "1/rest.tar.xz": lambda name: name != KERNELS and not name.startswith(later),
            "2/kernels.tar.xz": lambda name: name == KERNELS,
            "3/experts.tar.xz": lambda name: name.startswith(later),
        }
        for name, wanted in pieces.items():
            print(pack(site, options.out / name, wanted), name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
