"""The sizes of the tiny checkpoint, and the model configuration that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from omni_stage.models.shared.tiny.sizes import HEAD_DIM, TinySizes, special_ids
from omni_stage.models.shared.tiny.tokenizer import build_chat_template

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|AUDIO|>",
    "<|audio_bos|>",
    "<|audio_eos|>",
    "<|vision_bos|>",
    "<|vision_eos|>",
    "<|vision_pad|>",
    "<|IMAGE|>",
    "<|VIDEO|>",
    "<|tts_pad|>",
    "<|tts_start|>",
    "<|tts_end|>",
    "<|tts_chelsie|>",
    "<|tts_ethan|>",
    "<|tts_aiden|>",
)
"""In the order of their ids, which are the last ids of the vocabulary. The names that the processor and the chat
template use are the same as in the real model, which has no names for the tts tokens."""

SPEAKER_BOS_TOKENS = {"Chelsie": "<|tts_chelsie|>", "Ethan": "<|tts_ethan|>", "Aiden": "<|tts_aiden|>"}
"""The token that starts the talker's text, by speaker: the published speakers in their order, then an additional one.
A checkpoint may have any number of speakers."""

CHAT_TEMPLATE = build_chat_template(
    image="<|vision_bos|><|IMAGE|><|vision_eos|>",
    audio="<|audio_bos|><|AUDIO|><|audio_eos|>",
    video="<|vision_bos|><|VIDEO|><|vision_eos|>",
    first=(
        "{%- if loop.first and message['role'] != 'system' -%}\n"
        "{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}\n"
        "{%- endif -%}\n"
    ),
)
"""Begins the prompt with the system message of the published template, unless the chat has one."""


_PUBLISHED_BLOCK_SIZE = 24
"""The default in transformers."""
CODEC_EXTRA_IDS = 12
"""Number of the talker's ids above the audio codes: pad, start, end, mask, and unused ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape(TinySizes):
    """The sizes that can be chosen."""

    thinker_layers: int = 2
    encoder_layers: int = 1
    """Layers of the audio encoder and of the vision encoder."""
    audio_codes: int = 128
    """Number of audio codes that the talker can write and token2wav can read."""
    dit_layers: int = 3
    """Layers of the diffusion transformer."""
    block_size: int = 8
    """Mel frames in one attention block of the diffusion transformer; 24 in the published models, whose config.json
    does not state the size."""
    mel_bins: int = 16
    """Mel bins between the diffusion transformer and the vocoder."""


SHAPES: Mapping[str, TinyShape] = MappingProxyType(
    {
        "small": TinyShape(),
        "gqa": TinyShape(
            vocab_size=768,
            thinker_heads=8,
            thinker_kv_heads=2,
            thinker_layers=3,
            talker_hidden_size=160,
            talker_heads=6,
            talker_kv_heads=2,
            talker_layers=3,
            encoder_layers=2,
            audio_codes=192,
            dit_layers=4,
            mel_bins=24,
        ),
    }
)
"""Shapes by name. "gqa" differs from "small" in most sizes. Each of its key-value heads serves 4 query heads in the
thinker and 3 in the talker."""


def config_dict(shape: TinyShape) -> dict[str, Any]:
    """Returns the configuration of the whole model, as keyword arguments of Qwen2_5OmniConfig."""
    ids = special_ids(shape.vocab_size, SPECIAL_TOKENS)
    hidden_size = HEAD_DIM * shape.thinker_heads
    # The sections of M-RoPE (time, height, width) add up to half a head.
    rope = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [4, 6, 6]}
    placeholders = {
        "audio_token_index": ids["<|AUDIO|>"],
        "image_token_index": ids["<|IMAGE|>"],
        "video_token_index": ids["<|VIDEO|>"],
        "audio_start_token_id": ids["<|audio_bos|>"],
        "audio_end_token_id": ids["<|audio_eos|>"],
        "vision_start_token_id": ids["<|vision_bos|>"],
        "vision_end_token_id": ids["<|vision_eos|>"],
    }
    return {
        "enable_audio_output": True,
        "thinker_config": {
            **placeholders,
            "audio_config": _audio_config(shape, hidden_size),
            "vision_config": _vision_config(shape, hidden_size),
            "text_config": {
                "vocab_size": shape.vocab_size,
                "hidden_size": hidden_size,
                "intermediate_size": hidden_size + 64,
                "num_hidden_layers": shape.thinker_layers,
                "num_attention_heads": shape.thinker_heads,
                "num_key_value_heads": shape.thinker_kv_heads,
                "max_position_embeddings": shape.max_position_embeddings,
                "rope_parameters": dict(rope),
                "tie_word_embeddings": False,
            },
            "bos_token_id": ids["<|im_start|>"],
            "eos_token_id": ids["<|im_end|>"],
            "pad_token_id": ids["<|endoftext|>"],
            "user_token_id": ids["<|im_start|>"],
        },
        "talker_config": {
            **placeholders,
            "vocab_size": shape.audio_codes + CODEC_EXTRA_IDS,
            "tts_text_start_token_id": ids["<|tts_start|>"],
            "tts_text_end_token_id": ids["<|tts_end|>"],
            "tts_text_pad_token_id": ids["<|tts_pad|>"],
            "tts_codec_pad_token_id": shape.audio_codes + 1,
            "tts_codec_start_token_id": shape.audio_codes + 2,
            "tts_codec_end_token_id": shape.audio_codes + 3,
            "tts_codec_mask_token_id": shape.audio_codes + 5,
            "pad_token_id": shape.audio_codes + 1,
            "embedding_size": hidden_size,
            "hidden_size": shape.talker_hidden_size,
            "intermediate_size": shape.talker_hidden_size + 32,
            "num_hidden_layers": shape.talker_layers,
            "num_attention_heads": shape.talker_heads,
            "num_key_value_heads": shape.talker_kv_heads,
            "head_dim": HEAD_DIM,
            "max_position_embeddings": shape.max_position_embeddings,
            "rope_parameters": dict(rope),
        },
        "token2wav_config": {"dit_config": _dit_config(shape), "bigvgan_config": _vocoder_config(shape)},
    }


def _audio_config(shape: TinyShape, output_size: int) -> dict[str, Any]:
    return {
        "num_mel_bins": 128,
        "encoder_layers": shape.encoder_layers,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 64,
        "max_source_positions": 1500,
        "n_window": 100,
        "output_dim": output_size,
    }


def _vision_config(shape: TinyShape, output_size: int) -> dict[str, Any]:
    return {
        "depth": shape.encoder_layers,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": output_size,
        # Full attention in the last layer only. In the real model too, most layers attend within windows.
        "fullatt_block_indexes": [shape.encoder_layers - 1],
    }


def _dit_config(shape: TinyShape) -> dict[str, Any]:
    named = {} if shape.block_size == _PUBLISHED_BLOCK_SIZE else {"block_size": shape.block_size}
    return {
        **named,
        "hidden_size": 64,
        "num_hidden_layers": shape.dit_layers,
        "num_attention_heads": 2,
        "head_dim": HEAD_DIM,
        "ff_mult": 2,
        "emb_dim": 32,
        "look_ahead_layers": [1],
        "look_backward_layers": [0, 2],
        "repeats": 2,
        "num_embeds": shape.audio_codes + 1,
        "mel_dim": shape.mel_bins,
        "enc_emb_dim": 24,
        "enc_dim": 32,
        "enc_channels": [32, 32, 32, 32, 96],
        "enc_attention_channels": 16,
        "enc_se_channels": 16,
    }


def _vocoder_config(shape: TinyShape) -> dict[str, Any]:
    # The rates of the real model: 240 samples per mel frame, 2 frames per code and 50 codes per second make 24 kHz.
    return {
        "mel_dim": shape.mel_bins,
        "upsample_initial_channel": 64,
        "resblock_kernel_sizes": [3],
        "resblock_dilation_sizes": [[1, 3, 5]],
        "upsample_rates": [5, 3, 2, 2, 2, 2],
        "upsample_kernel_sizes": [11, 7, 4, 4, 4, 4],
    }
