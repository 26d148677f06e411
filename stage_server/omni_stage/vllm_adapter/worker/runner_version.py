"""Refuses vLLM's V2 model runner.

Private interface of vLLM 0.32 used here, and why:
- `VllmConfig.use_v2_model_runner`: says which runner the engine would use. Our hooks are for the V1 runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_stage.errors import ConfigurationError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_runner_version(vllm_config: VllmConfig) -> None:
    """Refuse vLLM's V2 runner. Raises ConfigurationError."""
    if vllm_config.use_v2_model_runner:
        raise ConfigurationError(
            "vLLM would use its V2 model runner, but stages need the V1 runner; set VLLM_USE_V2_MODEL_RUNNER=0",
            field="VLLM_USE_V2_MODEL_RUNNER",
        )
