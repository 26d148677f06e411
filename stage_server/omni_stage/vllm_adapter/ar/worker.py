"""The GPU worker of autoregressive stages: vLLM's worker with our runner. `worker_cls` names it. See cpu_workers.py for
CPUs.

Private interfaces of vLLM 0.32 used here, and why:
- `gpu_worker.Worker._make_model_runner`: vLLM's own factory method for a platform's runner.
"""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from omni_stage.vllm_adapter.ar.compiled_check import check_runner
from omni_stage.vllm_adapter.ar.runner import GPUARModelRunner, OmniARRunnerMixin
from omni_stage.vllm_adapter.ar.warm_steps import warm_steps
from omni_stage.vllm_adapter.worker.compile_watch import WatchesCompilation
from omni_stage.vllm_adapter.worker.torch_switches import apply_switches, check_runner_version


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
