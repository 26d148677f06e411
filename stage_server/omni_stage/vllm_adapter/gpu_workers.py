"""The GPU workers: vLLM's worker with our runners. `worker_cls` names them. See cpu_workers.py for CPUs.

Private interfaces of vLLM 0.32 used here, and why:
- `gpu_worker.Worker._make_model_runner`: vLLM's own factory method for a platform's runner.
- `Worker.init_device` (v1/worker/gpu_worker.py): requires that gpu_memory_utilization x total memory is free
  (`request_memory`), and sets `device` and `init_snapshot`. Nothing later limits a model without a KV cache to that
  share, because `EngineCore` runs no profiling (v1/engine/core.py, `_initialize_kv_caches`). So the share becomes the
  limit of torch's allocator here.
- `compile_or_warm_up_model`: vLLM's method warms up samplers and captures CUDA graphs for token counts, which this
  stage does not have. Ours runs the model's own `warm_up`.
- `execute_dummy_batch`: vLLM's method keeps data-parallel ranks in step through `_dummy_run`. Ours does nothing,
  because these ranks do not communicate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import CompilationTimes

from omni_proto.gpu_memory import torch_share
from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.ar.compiled_check import check_runner
from omni_stage.vllm_adapter.ar.runner import GPUARModelRunner, OmniARRunnerMixin
from omni_stage.vllm_adapter.ar.warm_steps import warm_steps
from omni_stage.vllm_adapter.diffusion.runner import GPUDiffusionModelRunner
from omni_stage.vllm_adapter.worker.compile_watch import WatchesCompilation
from omni_stage.vllm_adapter.worker.torch_switches import apply_switches, check_runner_version

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class PreparesToServe(WatchesCompilation):
    """Mixin with the methods that every autoregressive worker has for the start of a stage.

    The engine calls them through vLLM's `collective_rpc`.
    """

    model_runner: OmniARRunnerMixin

    def compare_with_eager(self) -> str:
        """Returns how the configured model differs from its own code; "" if it does not, or if nothing is compiled."""
        return check_runner(self.model_runner)

    def serve_eager(self) -> None:
        """Run all later steps with the model's own code."""
        self.model_runner.serve_as_written()

    def warm_steps(self) -> None:
        """Run the sizes of steps that vLLM's own warm-up leaves out."""
        warm_steps(self.model_runner)


class GPUARWorker(PreparesToServe, Worker):
    """vLLM's GPU worker with `GPUARModelRunner`."""

    def _make_model_runner(self) -> GPUARModelRunner:
        check_runner_version(self.vllm_config)
        apply_switches()
        return GPUARModelRunner(self.vllm_config, self.device)


class EndsStreams(WatchesCompilation):
    """Mixin with the methods that every worker of one-shot stages has. The engine calls them by `collective_rpc`."""

    model_runner: Any

    def end_stream(self, stream: str) -> None:
        """See KeepsStreams."""
        self.model_runner.end_stream(stream)


class GPUDiffusionWorker(EndsStreams, Worker):
    """vLLM's GPU worker with `GPUDiffusionModelRunner`, limited to its share of the GPU's memory."""

    def init_device(self) -> None:
        """Set the device up as vLLM does, then bound torch's allocator. Raises ConfigurationError."""
        super().init_device()
        limit_torch_memory(
            self.cache_config.gpu_memory_utilization, self.init_snapshot.total_memory, torch.device(self.device)
        )

    def _make_model_runner(self) -> GPUDiffusionModelRunner:
        check_runner_version(self.vllm_config)
        apply_switches()
        return GPUDiffusionModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Let the model warm itself up, and set the seed as vLLM's method does."""
        return warm_up(self.vllm_config, self.model_runner)

    def execute_dummy_batch(self) -> None:
        """Do nothing: these ranks do not communicate."""


def limit_torch_memory(share: float, device_bytes: int, device: torch.device) -> None:
    """Limit this process's torch allocator to `share` of a GPU's memory (gpuMemoryUtilization), less what CUDA needs.

    A request that needs more gets torch.OutOfMemoryError, and the GPU's other stages keep their memory. Raises
    ConfigurationError if nothing would be left.
    """
    try:
        allowed = torch_share(share, device_bytes)
    except ValueError as error:
        raise ConfigurationError(f"engineArgs.{error}; raise it", field="engineArgs.gpuMemoryUtilization") from error
    torch.cuda.set_per_process_memory_fraction(allowed, device)


def warm_up(vllm_config: VllmConfig, runner: GPUDiffusionModelRunner) -> CompilationTimes:
    """Warm the model up and set the seed, for `compile_or_warm_up_model`. Returns zero compilation times."""
    runner.warming_up_model()
    set_random_seed(vllm_config.model_config.seed, vllm_config.parallel_config.data_parallel_index)
    return CompilationTimes(language_model=0.0, encoder=0.0)
