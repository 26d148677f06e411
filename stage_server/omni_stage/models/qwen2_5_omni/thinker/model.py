"""vLLM model class of the thinker: vLLM's own, which here refuses a checkpoint that does not fit it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniThinkerForConditionalGeneration

from omni_stage.vllm_adapter.checks.weights import load_checked, quantize_what_is_quantized
from omni_stage.vllm_adapter.hooks import Positions


class ThinkerModel(Qwen2_5OmniThinkerForConditionalGeneration):
    """Qwen2.5-Omni's thinker. Hooks: PublishesPositions, HasPlaceholders."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        quantize_what_is_quantized(vllm_config.quant_config, vllm_config.model_config.model, self.hf_to_vllm_mapper)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        thinker = vllm_config.model_config.hf_config.thinker_config
        self.placeholder_token_ids = (
            thinker.audio_token_index,
            thinker.image_token_index,
            thinker.video_token_index,
        )
        device = next(self.parameters()).device
        placeholders = torch.tensor(self.placeholder_token_ids, dtype=torch.int64, device=device)
        self.register_buffer("_placeholders", placeholders, persistent=False)

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        """Hidden state plus input embedding; the hidden state alone where the prompt holds a medium."""
        ids, hidden = positions.input_ids, positions.hidden_states
        # Not torch.isin, which may sort and so make the host wait for the device.
        embedded = (ids.unsqueeze(-1) != self._placeholders).all(dim=-1)
        # Placeholder ids may lie outside the embedding table: look up id 0 there and leave the row alone.
        embedding = self.embed_input_ids(torch.where(embedded, ids, 0))
        return {"rows": torch.where(embedded.unsqueeze(-1), hidden + embedding, hidden)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the thinker out of a whole checkpoint. Raises ConfigurationError."""
        return load_checked(self, weights, super().load_weights, mapper=self.hf_to_vllm_mapper)
