"""vLLM's refusals of a request become errors that name what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.inputs import PlaceholderRange
from vllm.v1.engine.input_processor import InputProcessor

from omni_stage.errors import InvalidMediaError
from omni_stage.vllm_adapter.core.outputs import translate_error


def test_a_medium_that_the_encoder_cache_cannot_hold() -> None:
    """If maxModelLen is larger than the encoder cache, vLLM refuses a video that fits the prompt but not the cache."""
    processor: Any = SimpleNamespace(_validate_prompt_len=lambda *_: None, mm_encoder_cache_size=10)
    video = {"video": [PlaceholderRange(offset=0, length=12)]}
    prompt: Any = {"type": "multimodal", "prompt_token_ids": [1] * 20, "mm_placeholders": video}
    with pytest.raises(VLLMValidationError) as refused:
        InputProcessor._validate_model_input(processor, prompt, "decoder")
    error = translate_error(refused.value)
    assert isinstance(error, InvalidMediaError)
    assert error.details.field == "multi_modal_data.video"
