"""Decides where an engine's only worker runs.

vLLM 0.32's CPU platform replaces the executor of an engine with one that has a process per worker (`platforms/cpu.py`),
because only then can it set a worker's OpenMP variables. Here the stage server sets these variables before it imports
vLLM (process/env.py), and every process inherits them. So a single worker runs in its engine's process, as in vLLM on a
GPU, and one fewer process imports torch, transformers and vLLM (docs/adr/0009).
"""

from __future__ import annotations

from vllm.config import VllmConfig


def keep_worker_in_engine(config: VllmConfig) -> VllmConfig:
    """Put an engine's only worker into the engine's process. Returns the configuration, changed in place."""
    if config.parallel_config.world_size == 1:
        config.parallel_config.distributed_executor_backend = "uni"
    return config
