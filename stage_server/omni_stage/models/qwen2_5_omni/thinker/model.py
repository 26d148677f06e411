"""vLLM model class of the thinker: vLLM's own class, extended to publish rows and to check the loaded weights."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import (
    Qwen2_5OmniThinkerDummyInputsBuilder,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniThinkerMultiModalProcessor,
    Qwen2_5OmniThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from omni_stage.vllm_adapter.checks.weights import load_checked, quantize_what_is_quantized
from omni_stage.vllm_adapter.hooks import Positions
from omni_stage.vllm_adapter.media.positions import interleave_chunks
from omni_stage.vllm_adapter.media.video_audio import PairedModel, PairedProcessor, placeholder_ids


class ThinkerProcessor(PairedProcessor, Qwen2_5OmniThinkerMultiModalProcessor):
    """vLLM's processor, extended to videos with audio."""

    def interleave(self, times: np.ndarray, audio_count: int) -> np.ndarray:
        """See `places.Interleave`. Each chunk holds some seconds of video, then as much audio."""
        thinker = self.info.get_hf_config()
        return interleave_chunks(times, audio_count, int(thinker.position_id_per_seconds * thinker.seconds_per_chunk))


@MULTIMODAL_REGISTRY.register_processor(
    ThinkerProcessor,
    info=Qwen2_5OmniThinkerProcessingInfo,
    dummy_inputs=Qwen2_5OmniThinkerDummyInputsBuilder,
)
class ThinkerModel(PairedModel, Qwen2_5OmniThinkerForConditionalGeneration):
    """Qwen2.5-Omni's thinker. Hooks (vllm_adapter/hooks.py): PublishesPositions, HasPlaceholders."""

    frames_share = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        quantize_what_is_quantized(vllm_config.quant_config, vllm_config.model_config.model, self.hf_to_vllm_mapper)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        thinker = vllm_config.model_config.hf_config.thinker_config
        self.placeholder_token_ids = tuple(placeholder_ids(thinker).values())
        device = next(self.parameters()).device
        placeholders = torch.tensor(self.placeholder_token_ids, dtype=torch.int64, device=device)
        self.register_buffer("_placeholders", placeholders, persistent=False)

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        """Returns the rows: hidden state plus input embedding, or only the hidden state at a medium's placeholder."""
        ids, hidden = positions.input_ids, positions.hidden_states
        # Avoid torch.isin: it may sort, which makes the host wait for the device.
        embedded = (ids.unsqueeze(-1) != self._placeholders).all(dim=-1)
        # Placeholder ids may lie outside the embedding table: look up id 0 instead, and discard its embedding.
        embedding = self.embed_input_ids(torch.where(embedded, ids, 0))
        return {"rows": torch.where(embedded.unsqueeze(-1), hidden + embedding, hidden)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the thinker's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        return load_checked(self, weights, super().load_weights, mapper=self.hf_to_vllm_mapper)
