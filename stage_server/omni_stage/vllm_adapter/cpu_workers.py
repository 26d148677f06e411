"""The workers and the runner for CPUs: vLLM's CPU classes with the same hooks as on GPUs. Imported on CPUs only.

vLLM's CPU worker first imports `vllm.v1.worker.cpu.shm`, which replaces torch.cuda's streams and events,
`torch.Tensor.pin_memory`, `record_stream` and vLLM's own `async_tensor_h2d` with placeholders, in the whole process.
After that nothing works on a GPU: graphs cannot be captured, and tensors stay on the host. So these classes are not in
the modules of their GPU siblings, and no module that a GPU stage imports may import this one (test_gpu_imports,
checks/image.py).

Private interfaces of vLLM 0.32 used here, and why:
- `CPUWorker.init_device` (v1/worker/cpu_worker.py): builds its runner inline and calls no factory. So our runner is
  built after it and replaces vLLM's runner, which holds no model yet.
- `CPUModelRunner` (v1/worker/cpu_model_runner.py): is built differently from the GPU runner.

Before a model runs, 4-bit weights are refused on processors for which vLLM has no 4-bit kernel. vLLM 0.32 chooses
`CPUWNA16LinearKernel` (model_executor/kernels/linear/mixed_precision) for AWQ, GPTQ and pack-quantized layers on every
CPU; a layer's `quant_method` or `scheme` holds it as `kernel`. vLLM's x86 wheel holds three builds of its operators,
which `CpuPlatform.import_kernels` chooses from, and the one for processors without AVX-512 lacks
`torch.ops._C.cpu_gemm_wna16`: the engine would load the weights and die in its first step.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.worker.cpu_worker import CPUWorker  # isort: skip - first, as vLLM's own modules do

import torch
from vllm.model_executor.kernels.linear.mixed_precision.cpu import CPUWNA16LinearKernel
from vllm.platforms import CpuArchEnum, current_platform
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.worker_base import CompilationTimes

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.ar.runner import OmniARRunnerMixin
from omni_stage.vllm_adapter.diffusion.runner import GPUDiffusionModelRunner
from omni_stage.vllm_adapter.gpu_workers import EndsStreams, PreparesToServe, warm_up
from omni_stage.vllm_adapter.worker.torch_switches import apply_switches, check_runner_version


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


class CPUARModelRunner(OmniARRunnerMixin, CPUModelRunner):
    """The CPU sibling of `GPUARModelRunner`: vLLM builds its CPU runner with accelerator calls stubbed out.

    `host_memory` decides about streams and pinned memory, so the mixin needs no second path.
    """

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model. Raises ConfigurationError, also for weights that this processor cannot use."""
        super().load_model(*args, **kwargs)
        check_four_bit_kernel(self.get_model())


class CPUARWorker(PreparesToServe, CPUWorker):
    """vLLM's CPU worker with `CPUARModelRunner`."""

    def init_device(self) -> None:
        """Set the device up as vLLM does, then replace vLLM's runner with ours."""
        check_runner_version(self.vllm_config)
        apply_switches()
        super().init_device()
        self.model_runner = CPUARModelRunner(self.vllm_config, self.device)


class CPUDiffusionWorker(EndsStreams, CPUWorker):
    """vLLM's CPU worker with the runner of diffusion stages, which runs on any device."""

    def init_device(self) -> None:
        """Set the device up as vLLM does, then replace vLLM's runner with ours."""
        check_runner_version(self.vllm_config)
        apply_switches()
        super().init_device()
        self.model_runner = GPUDiffusionModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Let the model warm itself up, and set the seed as vLLM's method does."""
        return warm_up(self.vllm_config, self.model_runner)

    def execute_dummy_batch(self) -> None:
        """Do nothing: these ranks do not communicate."""
