"""vLLM model class of the thinker: vLLM's own, which here refuses a checkpoint that does not fit it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerForConditionalGeneration

from omni_stage.vllm_adapter.weight_check import load_checked, quantize_what_is_quantized


class ThinkerModel(Qwen2_5OmniThinkerForConditionalGeneration):
    """Qwen2.5-Omni's thinker."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        quantize_what_is_quantized(vllm_config.quant_config, vllm_config.model_config.model, self.hf_to_vllm_mapper)
        super().__init__(vllm_config=vllm_config, prefix=prefix)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the thinker out of a whole checkpoint. Raises ConfigurationError."""
        return load_checked(self, weights, super().load_weights, mapper=self.hf_to_vllm_mapper)
