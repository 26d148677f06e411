"""vLLM model class of the thinker: vLLM's own, which here publishes the hidden states that the talker reads of media.

The layer's hidden states come out of vLLM's forward as auxiliary ones, which compiled code has too; they are copied to
memory of a fixed address, which a CUDA graph replays. Hooks: PublishesPositions, HasPlaceholders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniAudioFeatureInputs
from vllm.model_executor.models.qwen3_omni_moe_thinker import Qwen3OmniMoeThinkerForConditionalGeneration

from omni_stage.models.qwen3_omni.thinker.sounds import encode_each
from omni_stage.vllm_adapter.checks.weights import load_checked, quantize_what_is_quantized
from omni_stage.vllm_adapter.hooks import Positions, Stretch
from omni_stage.vllm_adapter.worker.config import OmniRunnerConfig

MEDIA = "media"


class ThinkerModel(Qwen3OmniMoeThinkerForConditionalGeneration):
    """Qwen3-Omni's thinker."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        quantize_what_is_quantized(vllm_config.quant_config, vllm_config.model_config.model, self.hf_to_vllm_mapper)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        thinker = config.thinker_config
        self.placeholder_token_ids = (thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id)
        if not OmniRunnerConfig.from_vllm_config(vllm_config).capture_rows:
            return
        self.set_aux_hidden_state_layers((config.talker_config.accept_hidden_layer,))
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.register_buffer("_accepted", torch.zeros(tokens, thinker.text_config.hidden_size), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Hidden states of the last layer [n, H]; those of accept_hidden_layer are kept for publish_positions."""
        output = super().forward(*args, **kwargs)
        if not isinstance(output, tuple):
            return output
        hidden_states, (accepted,) = output
        self._accepted[: accepted.shape[0]].copy_(accepted)
        return hidden_states

    def _process_audio_input(self, audio_input: Qwen2_5OmniAudioFeatureInputs) -> tuple[torch.Tensor, ...]:
        """The rows [tokens, H] of each sound, equal to those it has alone.

        Of vLLM 0.32, which encodes all sounds of a step in one call and pads the short ones.
        """

        def encode(features: torch.Tensor, lengths: Sequence[int]) -> tuple[torch.Tensor, ...]:
            part = Qwen2_5OmniAudioFeatureInputs(
                type="audio_features",
                input_features=features,
                audio_feature_lengths=torch.tensor(lengths),
                validate=False,  # vLLM's check wants the mask as well, which the encoder does not read.
            )
            return super(ThinkerModel, self)._process_audio_input(part)

        lengths: list[int] = audio_input["audio_feature_lengths"].flatten().tolist()
        return encode_each(encode, audio_input["input_features"], lengths, 2 * self.audio_tower.n_window)

    def select_positions(self, stretch: Stretch) -> list[tuple[int, int]]:
        """The media of the prompt: of text the talker needs the ids alone."""
        end = stretch.start + stretch.length
        ranges = [(max(begin, stretch.start), min(until, end)) for begin, until in stretch.media]
        return [(begin - stretch.start, until - stretch.start) for begin, until in ranges if begin < until]

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        """The hidden states of accept_hidden_layer."""
        return {MEDIA: positions.take(self._accepted)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the thinker out of a whole checkpoint. Raises ConfigurationError."""
        return load_checked(self, weights, super().load_weights, mapper=self.hf_to_vllm_mapper)
