"""Checks the contents of a GPU image, while it is built and without a GPU.

    python -m omni_stage.vllm_adapter.checks.image        prints problems, and exits 1 if any; run as the image's user

vLLM 0.32 and Triton 3.7 require what is listed here. Without this check, an image that lacks any of it would fail only
when the first GPU pod starts:
- FlashInfer compiles its kernels with nvcc, which the image lacks. vLLM samples with it unless
  `vllm.envs.VLLM_USE_FLASHINFER_SAMPLER` is off (v1/sample/ops/topk_topp_sampler.py). If the package is installed, vLLM
  also selects its attention for some GPUs and types of KV cache (platforms/cuda.py, _get_backend_priorities), without
  looking for nvcc. So FlashInfer must be absent, or its precompiled kernels must be installed too.
- Triton and torch.compile call a C and a C++ compiler, with Python's headers, when a kernel is first used.
- The workers are imported by the engine's process, and so are the model classes (`registry._LazyRegisteredModel`).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omni_stage.vllm_adapter.process.env import apply_environment

MODULES = (
    "omni_stage.service.server.stage_server",
    "omni_stage.engine.vllm_engine",
    "omni_stage.vllm_adapter.gpu_workers",
)
_PRECOMPILED = ("flashinfer_cubin", "flashinfer_jit_cache")
_SOURCES = {
    "cc": ("main.c", "#include <Python.h>\n#include <stdlib.h>\nint answer(void) { return PY_MAJOR_VERSION; }\n"),
    "c++": ("main.cpp", "#include <vector>\nint answer() { return static_cast<int>(std::vector<int>(3).size()); }\n"),
}


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in an image."""

    cuda: str | None
    """torch.version.cuda."""
    required: str
    """NVIDIA_REQUIRE_CUDA: what the container runtime compares the node's driver with."""
    flashinfer: bool
    """Whether FlashInfer is installed, or vLLM would sample with it."""
    precompiled: Sequence[str]
    """Packages with FlashInfer's compiled kernels."""
    compilers: Mapping[str, str]
    """The error of each compiler; empty if it works."""
    imports: Mapping[str, str]
    """The error of each module's import; empty if it works."""
    user: int


def list_problems(found: Findings) -> list[str]:
    """Returns the problems of a GPU image, each with its remedy."""
    problems = []
    if found.cuda is None:
        problems.append("torch is built without CUDA: install the build that constraints/gpu.txt pins")
    elif found.required != (wanted := f"cuda>={found.cuda.split('.')[0]}.0"):
        problems.append(
            f"NVIDIA_REQUIRE_CUDA is {found.required!r}, torch is built for CUDA {found.cuda}: set {wanted}"
        )
    if found.flashinfer and len(found.precompiled) < len(_PRECOMPILED):
        problems.append(
            "FlashInfer would compile its kernels with nvcc, which the image lacks: leave flashinfer-python out "
            "(constraints/overrides-gpu.txt) and set VLLM_USE_FLASHINFER_SAMPLER=0, or install "
            f"{' and '.join(_PRECOMPILED)}"
        )
    problems += [f"{name} does not work: {said}" for name, said in found.compilers.items() if said]
    problems += [f"{name} cannot be imported: {said}" for name, said in found.imports.items() if said]
    if found.user == 0:
        problems.append("this check ran as root: run it as the image's user, who also runs the stage")
    return problems


def inspect() -> Findings:
    """Inspect the machine that this runs on. Returns what it found."""
    apply_environment()
    imports = {name: _import(name) for name in (*MODULES, *_list_model_modules())}
    import torch
    from vllm import envs

    return Findings(
        cuda=torch.version.cuda,
        required=os.environ.get("NVIDIA_REQUIRE_CUDA", ""),
        flashinfer=importlib.util.find_spec("flashinfer") is not None or bool(envs.VLLM_USE_FLASHINFER_SAMPLER),
        precompiled=[name for name in _PRECOMPILED if importlib.util.find_spec(name) is not None],
        compilers={name: try_compiler(name) for name in _SOURCES},
        imports=imports,
        user=os.getuid(),
    )


def _list_model_modules() -> list[str]:
    """Returns the modules of the model classes that plugins registered with vLLM."""
    from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    lazy = [model.module_name for model in ModelRegistry.models.values() if isinstance(model, _LazyRegisteredModel)]
    return sorted({name for name in lazy if not name.startswith("vllm.")})


def try_compiler(name: str) -> str:
    """Build a small library with the compiler. Returns why that fails (the end of its error output); empty if it
    works."""
    if shutil.which(name) is None:
        return "it is not installed"
    file, source = _SOURCES[name]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / file
        path.write_text(source, encoding="utf-8")
        command = [name, "-shared", "-fPIC", "-I", sysconfig.get_paths()["include"], str(path), "-o", f"{path}.so"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own source
    if not result.returncode:
        return ""
    return result.stderr.strip()[-500:] or f"it ended with exit code {result.returncode}"


def _import(name: str) -> str:
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - the build must report any error
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    """Print the problems. Returns 1 if there are any, else 0."""
    problems = list_problems(inspect())
    for problem in problems:
        print(f"image: {problem}", file=sys.stderr)  # noqa: T201 - the build's log
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
