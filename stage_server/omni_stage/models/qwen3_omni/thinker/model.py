"""vLLM model class of the thinker: vLLM's own, extended to publish the hidden states that the talker reads for media.

vLLM's forward returns the hidden states of the layer accept_hidden_layer as auxiliary hidden states, even when it is
compiled. Our forward copies them to memory at a fixed address, so that a CUDA graph can replay the copy. Hooks
(vllm_adapter/hooks.py): PublishesPositions, HasPlaceholders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import BatchFeature
from vllm.config import VllmConfig
from vllm.model_executor.models.qwen2_5_omni_thinker import Qwen2_5OmniAudioFeatureInputs
from vllm.model_executor.models.qwen3_omni_moe_thinker import (
    Qwen3OmniMoeThinkerDummyInputsBuilder,
    Qwen3OmniMoeThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerMultiModalProcessor,
    Qwen3OmniMoeThinkerProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from omni_stage.vllm_adapter.checks.weights import load_checked, quantize_what_is_quantized
from omni_stage.vllm_adapter.hooks import Positions, Stretch
from omni_stage.vllm_adapter.media.positions import interleave_times
from omni_stage.vllm_adapter.media.video_audio import PairedModel, PairedProcessor, placeholder_ids
from omni_stage.vllm_adapter.worker.config import OmniRunnerConfig

MEDIA = "media"


class ThinkerProcessor(PairedProcessor, Qwen3OmniMoeThinkerMultiModalProcessor):
    """vLLM's processor, extended to videos with audio. It also computes as many audio frames as transformers does.

    vLLM 0.32 pads audio to full frames of 10 ms, so a clip that ends within a frame gets one frame too many. The
    private methods `_get_hf_mm_inputs` and `_postprocess_hf_mm_data` bypass the vLLM class that pads.
    """

    def _get_hf_mm_inputs(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        return super(Qwen3OmniMoeThinkerMultiModalProcessor, self)._get_hf_mm_inputs(mm_items, hf_kwargs)

    def _postprocess_hf_mm_data(
        self, hf_data: Mapping[str, Any], hf_kwargs: Mapping[str, object], processed_data: BatchFeature
    ) -> BatchFeature:
        mask = processed_data.get("feature_attention_mask")
        if mask is None:
            return super(Qwen3OmniMoeThinkerMultiModalProcessor, self)._postprocess_hf_mm_data(
                hf_data, hf_kwargs, processed_data
            )
        hop = self.info.get_hf_processor().feature_extractor.hop_length
        frames = [count_frames(audio, hop) for audio in hf_data["audio"]]
        # Count the frames as for the clip alone: next to a longer clip, transformers also counts a partial last frame.
        mask = torch.arange(mask.shape[1])[None] < torch.tensor(frames)[:, None]
        processed_data["feature_attention_mask"] = mask
        processed = super(Qwen3OmniMoeThinkerMultiModalProcessor, self)._postprocess_hf_mm_data(
            hf_data, hf_kwargs, processed_data
        )
        # Each mask has its clip's own length, because vLLM caches the items of a prompt one by one.
        processed["feature_attention_mask"] = [torch.ones(count) for count in frames]
        return processed

    def interleave(self, times: np.ndarray, audio_count: int) -> np.ndarray:
        """See `places.Interleave`."""
        return interleave_times(times, audio_count)


@MULTIMODAL_REGISTRY.register_processor(
    ThinkerProcessor,
    info=Qwen3OmniMoeThinkerProcessingInfo,
    dummy_inputs=Qwen3OmniMoeThinkerDummyInputsBuilder,
)
class ThinkerModel(PairedModel, Qwen3OmniMoeThinkerForConditionalGeneration):
    """Qwen3-Omni's thinker."""

    frames_share = False

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        quantize_what_is_quantized(vllm_config.quant_config, vllm_config.model_config.model, self.hf_to_vllm_mapper)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = vllm_config.model_config.hf_config
        thinker = config.thinker_config
        self.placeholder_token_ids = tuple(placeholder_ids(thinker).values())
        if not OmniRunnerConfig.from_vllm_config(vllm_config).capture_rows:
            return
        self.set_aux_hidden_state_layers((config.talker_config.accept_hidden_layer,))
        tokens = vllm_config.scheduler_config.max_num_batched_tokens
        self.register_buffer("_accepted", torch.zeros(tokens, thinker.text_config.hidden_size), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the last layer's hidden states [n, H]. Keeps the hidden states of accept_hidden_layer for
        publish_positions."""
        output = super().forward(*args, **kwargs)
        if not isinstance(output, tuple):
            return output
        hidden_states, (accepted,) = output
        self._accepted[: accepted.shape[0]].copy_(accepted)
        return hidden_states

    def _process_audio_input(self, audio_input: Qwen2_5OmniAudioFeatureInputs) -> tuple[torch.Tensor, ...]:
        """Returns the rows [tokens, H] of each audio clip, the same as if the clip were encoded alone.

        vLLM 0.32 encodes all clips of a step in one call and pads the short ones, which would change their rows.
        """

        def encode(features: torch.Tensor, lengths: Sequence[int]) -> tuple[torch.Tensor, ...]:
            part = Qwen2_5OmniAudioFeatureInputs(
                type="audio_features",
                input_features=features,
                audio_feature_lengths=torch.tensor(lengths),
                validate=False,  # vLLM's check also requires the mask, which the encoder does not read.
            )
            return super(ThinkerModel, self)._process_audio_input(part)

        lengths: list[int] = audio_input["audio_feature_lengths"].flatten().tolist()
        return encode_each(encode, audio_input["input_features"], lengths, 2 * self.audio_tower.n_window)

    def select_positions(self, stretch: Stretch) -> list[tuple[int, int]]:
        """Returns the ranges of media within the stretch, relative to its start.

        For text, the talker needs only the token ids.
        """
        end = stretch.start + stretch.length
        ranges = [(max(begin, stretch.start), min(until, end)) for begin, until in stretch.media]
        return [(begin - stretch.start, until - stretch.start) for begin, until in ranges if begin < until]

    def publish_positions(self, positions: Positions) -> dict[str, torch.Tensor]:
        """Returns the hidden states of accept_hidden_layer."""
        return {MEDIA: positions.take(self._accepted)}

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the thinker's part of a checkpoint. Raises ConfigurationError if the weights do not fit."""
        return load_checked(self, weights, super().load_weights, mapper=self.hf_to_vllm_mapper)


def count_frames(audio: np.ndarray | tuple[np.ndarray, float], hop: int) -> int:
    """Returns how many full frames of `hop` samples audio [samples] has. `audio` may be a pair with its sample rate."""
    samples = audio[0] if isinstance(audio, tuple) else audio
    return int(samples.shape[-1]) // hop


def encode_each(
    encode: Callable[[torch.Tensor, Sequence[int]], Sequence[torch.Tensor]],
    features: torch.Tensor,
    lengths: Sequence[int],
    window: int,
) -> tuple[torch.Tensor, ...]:
    """Returns the encoder's rows for each audio clip, independent of the other clips in the call.

    `features`: [mel bins, frames of all clips]; `lengths`: frames of each clip; `window`: frames per window.

    The encoder's convolutions run over windows, which are padded to the longest window of the call. Because of their
    biases, the first layer writes nonzero values into the padding of a short last window, and the next layer reads
    these values. In a clip of at least one full window, the last window is always padded to full length. A clip shorter
    than a window is padded only next to a longer clip, so its rows would depend on which requests share the step. It
    therefore gets a call of its own.
    """
    rows: list[torch.Tensor] = []
    begin = 0
    for short, group in groupby(lengths, lambda length: length < window):
        together = list(group)
        for part in [[length] for length in together] if short else [together]:
            end = begin + sum(part)
            rows.extend(encode(features[:, begin:end], part))
            begin = end
    return tuple(rows)
