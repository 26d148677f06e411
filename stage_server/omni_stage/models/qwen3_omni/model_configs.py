"""Selects one stage's part of a Qwen3-Omni configuration for vLLM.

vLLM also calls these functions in its own processes (`hf_overrides`). So they are defined at module level, where pickle
finds them by name. vLLM first calls them with a dummy configuration, to check whether they change the model type.
"""

from __future__ import annotations

import math
from typing import Any

from omni_stage.models.qwen3_omni.manifest import (
    CODE2WAV_ARCHITECTURE,
    TALKER_ARCHITECTURE,
    THINKER_ARCHITECTURE,
)


def pick_code2wav(config: Any) -> Any:
    """Returns code2wav's configuration, with the vocab_size that vLLM requires of every model."""
    code2wav = getattr(config, "code2wav_config", None)
    if code2wav is None:
        return config
    code2wav.architectures = [CODE2WAV_ARCHITECTURE]
    code2wav.vocab_size = code2wav.codebook_size
    return code2wav


def name_thinker(config: Any) -> Any:
    """Returns the complete configuration, with our class as architecture. vLLM's thinker reads only its own part."""
    thinker = getattr(config, "thinker_config", None)
    if thinker is not None:
        config.architectures = [THINKER_ARCHITECTURE]
        # vLLM derives the number of position embeddings from image_size, which transformers does not read.
        vision = thinker.vision_config
        vision.image_size = math.isqrt(vision.num_position_embeddings) * vision.patch_size
    return config


def pick_talker(config: Any) -> Any:
    """Returns the configuration of the talker's layers, with further fields that our class and vLLM's layers read."""
    talker = getattr(config, "talker_config", None)
    if talker is None:
        return config
    text = talker.text_config
    text.architectures = [TALKER_ARCHITECTURE]
    # The published file has only the key "interleaved", which vLLM does not know. transformers always interleaves.
    text.rope_parameters = {**text.rope_parameters, "mrope_interleaved": True}
    text.bos_token_id = talker.codec_bos_id
    text.eos_token_id = talker.codec_eos_token_id
    # Every layer of transformers' talker has experts, whatever these two fields say.
    text.decoder_sparse_step, text.mlp_only_layers = 1, []
    text.omni_talker = talker.to_dict()
    text.omni_codes = config.code2wav_config.codebook_size
    return text
