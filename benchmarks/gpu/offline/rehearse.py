"""Imports on a CPU what the checks import on a GPU machine, from the packed pieces: a missing package shows here.

    mkdir site && for piece in gpu-pieces/*/*.tar.xz; do tar xJf $piece -C site; done
    PYTHONPATH=site:stage_server:proto:cli:operator:kube:tests:. python3.12 -m benchmarks.gpu.offline.rehearse

That Python needs the machine's torch, transformers and common packages, and a libcuda.so.1 (any library of that name,
on LD_LIBRARY_PATH), because vLLM's libraries are linked to it. Exit code 1 means that an import failed.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

MODULES = (
    *("vllm.v1.engine.async_llm", "vllm.v1.engine.core", "vllm.v1.executor.uniproc_executor"),
    *("vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu_worker", "vllm.v1.attention.backends.flash_attn"),
    *(
        "vllm.model_executor.layers.fused_moe.fused_moe",
        "vllm.v1.sample.ops.topk_topp_triton",
        "vllm.compilation.backends",
    ),
    *("omni_stage.engine.vllm_engine", "omni_stage.vllm_adapter.gpu_workers"),
    *("omni_stage.models.qwen3_omni.thinker.model", "omni_stage.models.qwen3_omni.talker.model"),
    *("omni_stage.models.qwen3_omni.code2wav.model", "omni_stage.service.server", "omni_cli.local.pipeline"),
    *("benchmarks.gpu.stages.serving", "benchmarks.gpu.stages.shaped", "benchmarks.gpu.qwen3_omni.codes"),
    *("support.models.reference_qwen3", "support.engines.omni_stages", "benchmarks.gpu.token2wav.wave"),
)


def pretend_to_have_a_gpu() -> None:
    """Make vLLM choose its CUDA modules on a machine without a GPU."""
    import torch
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Hopper(NonNvmlCudaPlatform):  # type: ignore[misc] # vLLM chooses the class at run time
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(9, 0)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H200"

    torch.cuda.is_available = lambda: True
    platforms: Any = vllm.platforms
    platforms._current_platform = platforms.current_platform = Hopper()


def main() -> int:
    """Import every module. Returns 1 if one cannot be imported, else 0."""
    from omni_stage.vllm_adapter.process.env import apply_environment

    apply_environment()
    # Symbols of the driver are missing here, and are looked up only when they are called.
    sys.setdlopenflags(os.RTLD_LAZY | os.RTLD_GLOBAL)
    pretend_to_have_a_gpu()
    failed = 0
    for name in MODULES:
        try:
            importlib.import_module(name)
            print(f"ok    {name}")
        except ImportError as error:
            failed = 1
            print(f"FAIL  {name}: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
