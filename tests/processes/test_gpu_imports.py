"""What a GPU stage imports leaves CUDA as it is: vLLM's CPU worker does not, for the whole process that imports it."""

from __future__ import annotations

import subprocess
import sys

from omni_stage.vllm_adapter.checks.image import MODULES
from omni_stage.vllm_adapter.select import worker_cls

_LOOK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import torch
print(torch.cuda.Stream.__name__, torch.cuda.Event.__name__, torch.cuda.current_stream.__module__)
print(torch.Tensor.pin_memory.__name__, torch.Tensor.record_stream.__name__)
print("vllm.v1.worker.cpu.shm" in sys.modules)
"""
_UNTOUCHED = ["Stream Event torch.cuda", "pin_memory record_stream", "False"]
_GPU_MODULES = (
    *MODULES,
    *(worker_cls(kind, "cuda").rpartition(".")[0] for kind in ("autoregressive", "diffusion")),
    "omni_stage.vllm_adapter.process.template",
    "omni_stage.models.qwen2_5_omni.thinker.model",
    "omni_stage.models.qwen2_5_omni.talker.model",
)


def _look(*modules: str) -> list[str]:
    command = [sys.executable, "-c", _LOOK, *modules]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout.splitlines()


def test_a_gpu_stage_leaves_cuda_as_it_is() -> None:
    assert _look(*_GPU_MODULES) == _UNTOUCHED


def test_the_cpus_workers_are_told_apart() -> None:
    """If vLLM no longer replaced anything, the two families could share their modules again."""
    (module,) = {worker_cls(kind, "cpu").rpartition(".")[0] for kind in ("autoregressive", "diffusion")}
    assert _look(module)[0].startswith("_StreamPlaceholder")
