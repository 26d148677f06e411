"""The imports of a GPU stage do not change torch.cuda. vLLM's CPU worker replaces parts of it in the whole process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from omni_stage.vllm_adapter.checks.image import MODULES
from omni_stage.vllm_adapter.wiring.names import worker_cls
from support.processes.polling import PATIENCE_S

_LOOK = """
import importlib, sys
import torch
for names in sys.argv[1:]:
    for name in names.split():
        importlib.import_module(name)
    streams = torch.cuda.Stream.__name__, torch.cuda.Event.__name__, torch.cuda.current_stream.__module__
    tensors = torch.Tensor.pin_memory.__name__, torch.Tensor.record_stream.__name__
    print(*streams, *tensors, "vllm.v1.worker.cpu.shm" in sys.modules)
"""
_UNTOUCHED = "Stream Event torch.cuda pin_memory record_stream False"
_GPU_MODULES = (
    *MODULES,
    *(worker_cls(kind, "cuda").rpartition(".")[0] for kind in ("autoregressive", "diffusion")),
    "omni_stage.vllm_adapter.process.template",
    "omni_stage.models.qwen2_5_omni.thinker.model",
    "omni_stage.models.qwen2_5_omni.talker.model",
)


@pytest.mark.full  # it takes as long as several engines, and only another vLLM changes it
def test_a_gpu_stage_leaves_cuda_as_it_is_and_the_cpus_worker_does_not() -> None:
    """A GPU stage's imports leave torch.cuda unchanged, and those of the CPU worker do not.

    If vLLM's CPU worker stopped replacing parts of torch.cuda, CPU and GPU workers could share their modules.
    """
    (cpu_module,) = {worker_cls(kind, "cpu").rpartition(".")[0] for kind in ("autoregressive", "diffusion")}
    # One process makes both checks, because importing vLLM takes ten seconds.
    command = [sys.executable, "-c", _LOOK, " ".join(_GPU_MODULES), cpu_module]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    gpu, cpu = done.stdout.splitlines()
    assert gpu == _UNTOUCHED
    assert cpu.startswith("_StreamPlaceholder")
