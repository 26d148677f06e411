"""Workers of autoregressive stages: vLLM's workers with our runner, chosen by `worker_cls`.

Private interfaces of vLLM 0.32 used here, and why:
- `gpu_worker.Worker._make_model_runner`: vLLM's own factory method for a platform's runner.
- `CPUWorker.init_device` (v1/worker/cpu_worker.py): builds its runner inline and calls no factory, so ours is built
  once more behind it; the first one holds no model yet and is dropped.
- `VllmConfig.use_v2_model_runner`: our hooks are those of the V1 runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import Worker

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.ar_runner import CPUARModelRunner, GPUARModelRunner
from omni_stage.vllm_adapter.compiled_check import check_runner

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class ComparesWithEager:
    """What is asked of every autoregressive worker once its engine is up, through vLLM's `collective_rpc`."""

    model_runner: GPUARModelRunner | CPUARModelRunner

    def compare_with_eager(self) -> str:
        """How the model as configured differs from its own code, in words; "" if it does not or nothing is compiled."""
        return check_runner(self.model_runner)


class GPUARWorker(ComparesWithEager, Worker):
    """vLLM's GPU worker with `GPUARModelRunner`."""

    def _make_model_runner(self) -> GPUARModelRunner:
        check_runner_version(self.vllm_config)
        return GPUARModelRunner(self.vllm_config, self.device)


class CPUARWorker(ComparesWithEager, CPUWorker):
    """vLLM's CPU worker with `CPUARModelRunner`."""

    def init_device(self) -> None:
        """Set the device up as vLLM does, then build our runner in place of vLLM's."""
        check_runner_version(self.vllm_config)
        super().init_device()
        self.model_runner = CPUARModelRunner(self.vllm_config, self.device)


def check_runner_version(vllm_config: VllmConfig) -> None:
    """Refuse vLLM's V2 runner. Raises ConfigurationError."""
    if vllm_config.use_v2_model_runner:
        raise ConfigurationError(
            "vLLM would use its V2 model runner, which these stages do not hook; set VLLM_USE_V2_MODEL_RUNNER=0",
            field="VLLM_USE_V2_MODEL_RUNNER",
        )
