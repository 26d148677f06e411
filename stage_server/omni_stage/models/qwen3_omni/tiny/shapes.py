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
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<|audio_pad|>",
)
"""In the order of their ids, which are the last ids of the vocabulary. The names are the same as in the published
tokenizer."""

PROCESSOR_TOKENS = {
    "image_token": "<|image_pad|>",
    "audio_token": "<|audio_pad|>",
    "video_token": "<|video_pad|>",
    "vision_bos_token": "<|vision_start|>",
    "vision_eos_token": "<|vision_end|>",
    "audio_bos_token": "<|audio_start|>",
    "audio_eos_token": "<|audio_end|>",
}
"""The entries of tokenizer_config.json from which the processor reads the tokens that stand for media or enclose
them."""

ROLES = ("system", "user", "assistant")
"""Each role is one token, as in the published vocabulary, because config.json has one id for each."""

ROLE_SENTENCES = tuple(f"{role}\n" for role in ROLES for _ in range(40))
"""Training text from which the tokenizer learns that a role at the beginning of a line is one token."""

CHAT_TEMPLATE = build_chat_template(
    image="<|vision_start|><|image_pad|><|vision_end|>",
    audio="<|audio_start|><|audio_pad|><|audio_end|>",
    video="<|vision_start|><|video_pad|><|vision_end|>",
    reply=(
        "{%- if enable_thinking is defined and enable_thinking is false -%}\n"
        "{{- '<think>\\n\\n</think>\\n\\n' -}}\n"
        "{%- endif -%}\n"
    ),
)
"""Like the published template, it adds no system message of its own."""


_CODEC_EXTRA_IDS = 1024
"""Number of the talker's ids above the audio codes, as in the published model. transformers' generate() suppresses all
of them except the id that ends the stream."""
_ROPE = {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [6, 5, 5], "interleaved": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyShape(TinySizes):
    """The sizes that can be chosen."""

    thinker_layers: int = 3
    thinker_experts: int = 4
    """Experts in each of the thinker's layers; each token uses two."""
    accept_hidden_layer: int = 2
    """Layer of the thinker whose hidden states the talker reads for media. It lies above the layer that adds the vision
    encoder's deepstack features."""
    talker_experts: int = 4
    """Experts in each of the talker's layers; each token uses two and the shared expert."""
    predictor_layers: int = 2
    groups: int = 4
    """Number of codes in a frame; 16 in the published models."""
    audio_codes: int = 64
    """Number of codes in a codebook."""
    encoder_layers: int = 2
    """Layers of the audio encoder and of the vision encoder."""
    code2wav_layers: int = 2
    window: int = 12
    """Frames that code2wav's attention sees; 72 in the published models."""


SHAPES: Mapping[str, TinyShape] = MappingProxyType(
    {
        "small": TinyShape(),
        "wide": TinyShape(
            vocab_size=768,
            thinker_heads=6,
            thinker_kv_heads=2,
            thinker_layers=4,
            thinker_experts=6,
            accept_hidden_layer=3,
            talker_hidden_size=160,
            talker_heads=6,
            talker_kv_heads=1,
            talker_layers=3,
            talker_experts=6,
            predictor_layers=3,
            groups=16,
            audio_codes=96,
            code2wav_layers=3,
            window=20,
        ),
    }
)
"""Shapes by name. "wide" differs from "small" in most sizes, and has as many code groups as the published models."""


def config_dict(shape: TinyShape, role_ids: Mapping[str, int]) -> dict[str, Any]:
    """Returns the configuration of the whole model, as keyword arguments of Qwen3OmniMoeConfig."""
    ids = special_ids(shape.vocab_size, SPECIAL_TOKENS)
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "audio_end_token_id": ids["<|audio_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "position_id_per_seconds": 13,
        "seconds_per_chunk": 2,
    }
    return {
        "enable_audio_output": True,
        "thinker_config": {
            **media,
            "vision_end_token_id": ids["<|vision_end|>"],
            "user_token_id": role_ids["user"],
            "audio_config": _audio_config(shape),
            "vision_config": _vision_config(shape),
            "text_config": _thinker_text(shape),
        },
        "talker_config": {**media, **_talker_config(shape)},
        "code2wav_config": _code2wav_config(shape),
        "im_start_token_id": ids["<|im_start|>"],
        "im_end_token_id": ids["<|im_end|>"],
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        **{f"{role}_token_id": token_id for role, token_id in role_ids.items()},
    }


def _thinker_text(shape: TinyShape) -> dict[str, Any]:
    return {
        "vocab_size": shape.vocab_size,
        "hidden_size": HEAD_DIM * shape.thinker_heads,
        "intermediate_size": 64,
        "moe_intermediate_size": 64,
        "num_experts": shape.thinker_experts,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "shared_expert_intermediate_size": 0,
        "num_hidden_layers": shape.thinker_layers,
        "num_attention_heads": shape.thinker_heads,
        "num_key_value_heads": shape.thinker_kv_heads,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": shape.max_position_embeddings,
        "rope_parameters": {**_ROPE, "mrope_interleaved": True},
        "tie_word_embeddings": False,
    }


def _talker_config(shape: TinyShape) -> dict[str, Any]:
    hidden, codes = shape.talker_hidden_size, shape.audio_codes
    heads = {
        "num_attention_heads": shape.talker_heads,
        "num_key_value_heads": shape.talker_kv_heads,
        "head_dim": HEAD_DIM,
        "hidden_size": hidden,
        "max_position_embeddings": shape.max_position_embeddings,
    }
    return {
        "accept_hidden_layer": shape.accept_hidden_layer,
        "thinker_hidden_size": HEAD_DIM * shape.thinker_heads,
        "num_code_groups": shape.groups,
        # These ids have the same distances from the last audio code as in the published model.
        "codec_pad_id": codes + 100,
        "codec_bos_id": codes + 101,
        "codec_eos_token_id": codes + 102,
        "codec_nothink_id": codes + 107,
        "codec_think_bos_id": codes + 108,
        "codec_think_eos_id": codes + 109,
        "speaker_id": {"chelsie": codes + 253, "ethan": codes + 254, "aiden": codes + 255},
        "spatial_merge_size": 2,
        "text_config": {
            **heads,
            "vocab_size": codes + _CODEC_EXTRA_IDS,
            "intermediate_size": hidden + 32,
            "moe_intermediate_size": 64,
            "shared_expert_intermediate_size": 96,
            "num_experts": shape.talker_experts,
            "num_experts_per_tok": 2,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "num_hidden_layers": shape.talker_layers,
            "rope_parameters": dict(_ROPE),
        },
        "code_predictor_config": {
            **heads,
            "vocab_size": codes,
            "intermediate_size": hidden + 64,
            "num_hidden_layers": shape.predictor_layers,
            "num_code_groups": shape.groups,
            "layer_types": ["full_attention"] * shape.predictor_layers,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        },
    }


def _audio_config(shape: TinyShape) -> dict[str, Any]:
    return {
        "num_mel_bins": 128,
        "encoder_layers": shape.encoder_layers,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "d_model": 64,
        "max_source_positions": 1500,
        "n_window": 50,
        "n_window_infer": 800,
        "conv_chunksize": 500,
        "downsample_hidden_size": 32,
        "output_dim": HEAD_DIM * shape.thinker_heads,
    }


def _vision_config(shape: TinyShape) -> dict[str, Any]:
    return {
        "depth": shape.encoder_layers,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_heads": 2,
        "out_hidden_size": HEAD_DIM * shape.thinker_heads,
        "num_position_embeddings": 256,
        "image_size": 256,
        "apply_vit_abs_pos_embed": True,
        "deepstack_visual_indexes": [0],
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }


def _code2wav_config(shape: TinyShape) -> dict[str, Any]:
    # The rates of the real model: 1,920 samples per frame, 12.5 frames per second.
    return {
        "codebook_size": shape.audio_codes,
        "num_quantizers": shape.groups,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": shape.code2wav_layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "sliding_window": shape.window,
        "decoder_dim": 64,
        "max_position_embeddings": 8000,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }
