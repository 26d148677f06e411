"""Checks that this machine's driver, GPU, compilers and limits meet the stages' requirements."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.checks import Context, Finding
from omni_stage.vllm_adapter.checks.gpu_driver import find_driver_problem
from omni_stage.vllm_adapter.checks.image import try_compiler

LEAST_CAPABILITY = (8, 0)
"""Lowest supported compute capability: bfloat16 and FlashAttention 2 need it."""
SHM_BYTES_PER_GPU = 2 << 30
_INIT = "import torch; torch.cuda.init(); print(torch.cuda.get_device_name())"


def versions(_: Context) -> Finding:
    """Reports the versions of torch, CUDA and Python, and the GPU's name."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    return Finding(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {name}, Python {sys.version.split()[0]}")


def driver(_: Context) -> Finding:
    """Compares the newest CUDA that the driver supports with the one that torch is built for."""
    version = ctypes.c_int()
    # The driver is asked directly, because torch 2.11 and 2.13 expose no function for it.
    code = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    problem = f"cuDriverGetVersion: {code}" if code else find_driver_problem(version.value, torch.version.cuda)
    return Finding(problem or str(version.value), f"CUDA {torch.version.cuda}", ok=not problem)


def capability(_: Context) -> Iterator[Finding]:
    """Compares every GPU's compute capability with the lowest that the stages support."""
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_capability(index)
        least = ".".join(map(str, LEAST_CAPABILITY))
        memory = torch.cuda.get_device_properties(index).total_memory
        yield Finding(
            ".".join(map(str, found)),
            f">={least}",
            ok=found >= LEAST_CAPABILITY,
            name=f"gpu{index}",
            data={"total_bytes": memory, "name": torch.cuda.get_device_name(index)},
        )


def compilers(context: Context) -> Iterator[Finding]:
    """Tries the C and C++ compilers, which Triton and torch.compile call when a kernel is first used."""
    for name in ("cc", "c++"):
        said = try_compiler(name)
        if said and not context.on_gpu:
            yield Finding("", name=name, skipped=f"matters only with a GPU: {said}")
        else:
            yield Finding(said or "works", "works", ok=not said, name=name)


def flashinfer(_: Context) -> Finding:
    """Checks which library samples tokens: PyTorch, which needs no compiler, or FlashInfer, which needs nvcc."""
    from omni_stage.vllm_adapter.process.env import apply_environment

    apply_environment()
    from vllm import envs

    if not envs.VLLM_USE_FLASHINFER_SAMPLER:
        return Finding("PyTorch samples", "no nvcc needed")
    nvcc = shutil.which("nvcc")
    return Finding(f"FlashInfer, nvcc {nvcc or 'missing'}", "no nvcc needed", ok=nvcc is not None)


def shared_memory(context: Context) -> Finding:
    """Checks the size of /dev/shm, which NCCL and vLLM's message queues use."""
    found = os.statvfs("/dev/shm")  # noqa: S108 - read, not written
    size, least = found.f_blocks * found.f_frsize, SHM_BYTES_PER_GPU * max(1, context.gpus)
    return Finding(f"{size >> 20} MiB", f">={least >> 20} MiB", ok=size >= least)


def read_only(_: Context) -> Finding:
    """Checks that CUDA starts as in a pod: as user 10001, with a read-only root file system and /tmp as a volume."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return Finding("", skipped="needs unshare and setpriv (util-linux)")
    inside = (
        "mount -t tmpfs -o mode=1777 tmpfs /tmp && mount -o remount,ro,bind / && "
        f"exec setpriv --reuid 10001 --regid 10001 --clear-groups {sys.executable} -c"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{inside} "{_INIT}"']
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if result.returncode and "remount" in result.stderr:
        return Finding("", skipped=f"the root cannot be made read-only here: {result.stderr.strip()[-100:]}")
    said = (result.stdout if result.returncode == 0 else result.stderr).strip()[-200:]
    return Finding(said, "CUDA starts", ok=result.returncode == 0)


def fork(context: Context) -> Finding:
    """Reports whether engines are forked from the template, or else why they are spawned."""
    code = (
        "from omni_stage.vllm_adapter.process.env import apply_environment as a; a()\n"
        "from omni_stage.vllm_adapter.process import template as t; t.import_shared()\n"
        "print(t._find_hindrance() or 'forked')"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    context.say(result.stderr)
    said = result.stdout.strip().splitlines()[-1:] or ["?"]
    # Both are correct: a process that has opened the GPU must not be forked.
    return Finding(said[0], "forked, or a reason", ok=result.returncode == 0)


def nvidia_files(pid: int) -> list[str]:
    """Returns the paths of NVIDIA's device files that a process has open.

    /dev/nvidia-uvm may be open even if the process has no CUDA context.
    """
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            found.add(target)
    return sorted(found)
