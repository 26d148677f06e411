"""Checks whether a GPU's driver is new enough for the installed torch, and explains CUDA's failures.

The check asks NVML before an engine starts. NVML makes no CUDA context, so the stage server itself does not use CUDA.
Without this check, the engine's process would fail for the same cause, with messages that name no remedy.

Interfaces of vLLM 0.32 used here: `vllm.platforms.current_platform` (an empty `device_type` means that there is neither
a GPU nor a CPU build), and `vllm.utils.import_utils.import_pynvml`, its copy of NVIDIA's wrapper.
"""

from __future__ import annotations

from omni_stage.errors import ConfigurationError

_FIELD = "nvidia.com/gpu"
_MINIMUM_DRIVER = {12: 525, 13: 580}
"""Major version of CUDA -> first driver branch on Linux that runs it (NVIDIA, CUDA compatibility, minor versions)."""
_NO_GPU = (
    "no GPU can be seen. The node needs NVIDIA's driver and container toolkit; the stage needs a limit of "
    "nvidia.com/gpu of at least 1, and spec.defaults.runtimeClassName where NVIDIA's runtime is not the default. "
    "On CPUs use the CPU's image"
)
_MEANINGS = (
    # libc10_cuda (c10/cuda/CUDAFunctions.cpp), libcudart (cudaGetErrorString): torch 2.13, CUDA 13.0
    ("Found no NVIDIA driver on your system", _NO_GPU),
    ("The NVIDIA driver on your system is too old", "{driver}"),
    ("CUDA driver version is insufficient for CUDA runtime version", "{driver}"),
    ("forward compatibility was attempted on non supported HW", "{driver}"),
    (
        "no kernel image is available for execution on the device",
        "the installed torch or vLLM has no kernels for this GPU: its compute capability is too old or too new",
    ),
)


def find_driver_problem(driver_cuda: int, torch_cuda: str | None) -> str:
    """Returns why a driver cannot run this build of torch, with the remedy; empty if it can.

    `driver_cuda` is the newest CUDA that the driver runs, as NVML and CUDA count: 1000 x major + 10 x minor.
    `torch_cuda` is torch.version.cuda; None for builds without CUDA. A driver for any minor version of CUDA
    runs all minor versions of the same major version (CUDA's minor version compatibility).
    """
    if torch_cuda is None:
        return ""
    major = int(torch_cuda.split(".")[0])
    if driver_cuda // 1000 >= major:
        return ""
    found = f"this node's NVIDIA driver runs CUDA {driver_cuda // 1000}.{driver_cuda % 1000 // 10} at most"
    return f"{found}. {_newer_driver(torch_cuda)}"


def explain_cuda_failure(text: str, torch_cuda: str | None) -> str:
    """Returns the cause of a message of torch or CUDA, with a remedy for the node's administrator; empty if unknown."""
    for part, meaning in _MEANINGS:
        if part in text:
            return meaning.replace("{driver}", f"the NVIDIA driver is too old. {_newer_driver(torch_cuda or '13.0')}")
    return ""


def check_gpu() -> None:
    """Refuse a machine whose GPU the engine could not use. Raises ConfigurationError. Does nothing in a CPU build."""
    import torch
    from vllm.platforms import current_platform
    from vllm.utils.import_utils import import_pynvml

    if current_platform.is_cpu():
        return
    if not current_platform.device_type:
        raise ConfigurationError(_NO_GPU, field=_FIELD)
    if not current_platform.is_cuda():
        return
    nvml = import_pynvml()
    try:
        nvml.nvmlInit()
        try:
            driver_cuda = int(nvml.nvmlSystemGetCudaDriverVersion_v2())
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError:
        # Some devices have no NVML (Jetson): there CUDA itself reports the problem.
        return
    if problem := find_driver_problem(driver_cuda, torch.version.cuda):
        raise ConfigurationError(problem, field=_FIELD)


def _newer_driver(torch_cuda: str) -> str:
    major = int(torch_cuda.split(".")[0])
    minimum = f"driver {_MINIMUM_DRIVER[major]} or newer" if major in _MINIMUM_DRIVER else f"a driver of CUDA {major}"
    return f"torch here is built for CUDA {torch_cuda}, which needs {minimum}: update the node's driver"
