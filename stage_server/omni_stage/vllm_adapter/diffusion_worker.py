"""Workers of diffusion stages: vLLM's workers with `GPUDiffusionModelRunner`, chosen by `worker_cls`.

Private interfaces of vLLM 0.32 used here, and why:
- `gpu_worker.Worker._make_model_runner`: vLLM's own factory method for a platform's runner.
- `CPUWorker.init_device` (v1/worker/cpu_worker.py): builds its runner inline and calls no factory, so ours is built
  behind it; the runner that it replaces holds no model yet.
- `compile_or_warm_up_model`: warms up samplers and captures CUDA graphs over token counts, of which there are none.
- `execute_dummy_batch`: keeps data-parallel ranks in step through `_dummy_run`; these ranks do not talk to one another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import CompilationTimes

from omni_stage.vllm_adapter.ar_worker import check_runner_version
from omni_stage.vllm_adapter.diffusion_runner import GPUDiffusionModelRunner

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class GPUDiffusionWorker(Worker):
    """vLLM's GPU worker with `GPUDiffusionModelRunner`."""

    def _make_model_runner(self) -> GPUDiffusionModelRunner:
        check_runner_version(self.vllm_config)
        return GPUDiffusionModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to warm up; sets the seed as vLLM does here."""
        return skip_warm_up(self.vllm_config)

    def execute_dummy_batch(self) -> None:
        """Nothing to keep in step."""


class CPUDiffusionWorker(CPUWorker):
    """vLLM's CPU worker with the same runner: nothing in it depends on the device."""

    def init_device(self) -> None:
        """Set the device up as vLLM does, then put our runner in place of vLLM's."""
        check_runner_version(self.vllm_config)
        super().init_device()
        self.model_runner = GPUDiffusionModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Nothing to warm up; sets the seed as vLLM does here."""
        return skip_warm_up(self.vllm_config)

    def execute_dummy_batch(self) -> None:
        """Nothing to keep in step."""


def skip_warm_up(vllm_config: VllmConfig) -> CompilationTimes:
    """What `compile_or_warm_up_model` leaves behind: the seed set, and no time spent on compiling."""
    set_random_seed(vllm_config.model_config.seed, vllm_config.parallel_config.data_parallel_index)
    return CompilationTimes(language_model=0.0, encoder=0.0)
