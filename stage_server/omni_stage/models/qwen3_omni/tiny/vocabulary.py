"""The tiny checkpoint's vocabulary: special tokens, role names and chat template."""

from __future__ import annotations

from omni_stage.models.shared.tiny.chat_template import build_chat_template

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
