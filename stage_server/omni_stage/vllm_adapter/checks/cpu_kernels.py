"""Refuses 4-bit weights on processors for which vLLM has no 4-bit kernel.

vLLM 0.32 chooses `CPUWNA16LinearKernel` for AWQ, GPTQ and pack-quantized layers on every CPU. Its x86 wheel holds three
builds of its operators, and the one for processors without AVX-512 lacks `cpu_gemm_wna16`. The engine would load the
weights and die in its first step.

Private interfaces of vLLM 0.32 used here: `CPUWNA16LinearKernel` (model_executor/kernels/linear/mixed_precision), which
a layer's `quant_method` or `scheme` holds as `kernel`; and the operator `torch.ops._C.cpu_gemm_wna16`, which
`CpuPlatform.import_kernels` loads from the build that fits the processor.
"""

from __future__ import annotations

import torch
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.platforms import CpuArchEnum, current_platform

from omni_stage.errors import ConfigurationError


def has_four_bit_kernel() -> bool:
    """Returns whether vLLM can multiply by 4-bit weights on this processor."""
    return current_platform.get_cpu_architecture() != CpuArchEnum.X86 or hasattr(torch.ops._C, "cpu_gemm_wna16")


def check_four_bit_kernel(model: torch.nn.Module) -> None:
    """Raises ConfigurationError if a layer of `model` needs vLLM's 4-bit kernel and this processor has none."""
    if not has_four_bit_kernel() and any(map(_is_four_bit, model.modules())):
        raise ConfigurationError(
            "the checkpoint's weights have 4 bits (AWQ or GPTQ), and vLLM computes with them only on processors with "
            "AVX-512, which this one lacks; use the checkpoint that is not quantized, or a node with AVX-512 or a GPU",
            field="model.path",
        )


def _is_four_bit(layer: torch.nn.Module) -> bool:
    holders = (getattr(layer, "quant_method", None), getattr(layer, "scheme", None))
    return any(isinstance(getattr(holder, "kernel", None), CPUWNA16LinearKernel) for holder in holders)
