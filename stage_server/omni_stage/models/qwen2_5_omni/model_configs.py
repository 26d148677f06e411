"""Selects one stage's part of a Qwen2.5-Omni configuration for vLLM.

vLLM also calls these functions in its own processes (`hf_overrides`). So they are defined at module level, where pickle
finds them by name. vLLM first calls them with a dummy configuration, to check whether they change the model type.
"""

from __future__ import annotations

from typing import Any

from omni_stage.models.qwen2_5_omni.manifest import (
    TALKER_ARCHITECTURE,
    THINKER_ARCHITECTURE,
    TOKEN2WAV_ARCHITECTURE,
)


def name_thinker(config: Any) -> Any:
    """Returns the complete configuration, with our class as architecture. vLLM's thinker reads only its own part.

    Checkpoints name the architecture in several ways, and vLLM does not know all of them.
    """
    thinker = getattr(config, "thinker_config", None)
    if thinker is not None:
        config.architectures = [THINKER_ARCHITECTURE]
        # vLLM reads this number elsewhere than transformers.
        thinker.vision_config.tokens_per_second = thinker.position_id_per_seconds
    return config


def pick_talker(config: Any) -> Any:
    """Returns the talker's configuration, with the fields that vLLM's Llama layers read."""
    talker = getattr(config, "talker_config", None)
    if talker is None:
        return config
    talker.architectures = [TALKER_ARCHITECTURE]
    talker.qkv_bias = True  # as in Qwen2's layers, only query, key and value have biases
    talker.bos_token_id = talker.tts_codec_start_token_id
    talker.eos_token_id = talker.tts_codec_end_token_id
    talker.omni_code_limit = config.token2wav_config.dit_config.num_embeds + 1
    return talker


def pick_token2wav(config: Any) -> Any:
    """Returns token2wav's configuration, with the fields that vLLM requires of every model."""
    token2wav = getattr(config, "token2wav_config", None)
    if token2wav is None:
        return config
    dit = token2wav.dit_config
    token2wav.architectures = [TOKEN2WAV_ARCHITECTURE]
    token2wav.hidden_size = dit.hidden_size
    token2wav.num_hidden_layers = dit.num_hidden_layers
    token2wav.num_attention_heads = dit.num_attention_heads
    token2wav.num_key_value_heads = dit.num_attention_heads
    token2wav.vocab_size = dit.num_embeds
    token2wav.max_position_embeddings = dit.max_position_embeddings
    return token2wav
