"""vLLM reads the environment when it is imported: set it before a test module imports the engine."""

from __future__ import annotations

from omni_stage.vllm_adapter.process.env import apply_environment

apply_environment()
