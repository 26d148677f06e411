"""The tiny checkpoint's vocabulary: special tokens and chat template."""

from __future__ import annotations

from omni_stage.models.shared.tiny.chat_template import build_chat_template

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
