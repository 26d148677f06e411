"""Picks one stage's part out of a Qwen3-Omni configuration for vLLM.

vLLM calls these in its own processes too (`hf_overrides`), so they are module-level functions that pickle by name. It
also calls them with a dummy configuration first, to see whether they change the model type.
"""

from __future__ import annotations

from typing import Any

from omni_stage.models.qwen3_omni.manifest import (
    CODE2WAV_ARCHITECTURE,
    TALKER_ARCHITECTURE,
    THINKER_ARCHITECTURE,
)


def pick_code2wav(config: Any) -> Any:
    """The configuration of code2wav, with the number that vLLM wants of every model."""
    code2wav = getattr(config, "code2wav_config", None)
    if code2wav is None:
        return config
    code2wav.architectures = [CODE2WAV_ARCHITECTURE]
    code2wav.vocab_size = code2wav.codebook_size
    return code2wav


def name_thinker(config: Any) -> Any:
    """The whole configuration, of which vLLM's thinker reads its part, under our class's name."""
    if getattr(config, "thinker_config", None) is not None:
        config.architectures = [THINKER_ARCHITECTURE]
    return config


def pick_talker(config: Any) -> Any:
    """The configuration of the talker's layers, with what our model class and vLLM's layers read beside it."""
    talker = getattr(config, "talker_config", None)
    if talker is None:
        return config
    text = talker.text_config
    text.architectures = [TALKER_ARCHITECTURE]
    # The published file says "interleaved" alone, which transformers takes for granted and vLLM does not know.
    text.rope_parameters = {**text.rope_parameters, "mrope_interleaved": True}
    text.bos_token_id = talker.codec_bos_id
    text.eos_token_id = talker.codec_eos_token_id
    text.omni_talker = talker.to_dict()
    return text
