"""Where an engine's one worker runs.

vLLM 0.32's CPU platform exchanges the executor of an engine for one with a process per worker (`platforms/cpu.py`),
because only so can it set a worker's OpenMP variables. Ours are set at entry (process/env.py) and every process
inherits them, so a lone worker runs in its engine's process, as vLLM itself has it on a GPU: one process less to
import torch, transformers and vLLM (docs/adr/0009).
"""

from __future__ import annotations

from vllm.config import VllmConfig


def keep_worker_in_engine(config: VllmConfig) -> VllmConfig:
    """The configuration, with its worker in the engine's process if it has only one. Changes it in place."""
    if config.parallel_config.world_size == 1:
        config.parallel_config.distributed_executor_backend = "uni"
    return config
