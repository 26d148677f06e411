"""Whisper of vLLM 0.32, with prompts that may begin with the text before the audio."""

from __future__ import annotations

from vllm.model_executor.models.whisper import (
    WhisperDummyInputsBuilder,
    WhisperForConditionalGeneration,
    WhisperMultiModalProcessor,
    WhisperProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY


class _PromptKeeper(WhisperMultiModalProcessor):
    """vLLM puts the decoder's start token before every prompt that does not begin with it, also before <|startofprev|>,
    which must come first."""

    skip_decoder_start_token = True


@MULTIMODAL_REGISTRY.register_processor(
    _PromptKeeper, info=WhisperProcessingInfo, dummy_inputs=WhisperDummyInputsBuilder
)
class OmniWhisper(WhisperForConditionalGeneration):
    """The model itself is vLLM's."""
