"""The tiny checkpoint's vocabulary: special tokens and chat template."""

from __future__ import annotations

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
"""In the order of their ids, the last ids of the vocabulary. The names that the processor and the chat template use
are the real model's; the real model has no names for the tts tokens."""

END_OF_TEXT = "<|im_end|>"
"""Ends a message, and therefore the thinker's reply."""

PADDING = "<|endoftext|>"
"""Pads batches; ends a document."""

SPEAKER_BOS_TOKENS = {"Chelsie": "<|tts_chelsie|>", "Ethan": "<|tts_ethan|>", "Aiden": "<|tts_aiden|>"}
"""The token that starts the talker's text, by speaker. The published speakers in their order, then an additional one:
a checkpoint may have any number of speakers."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- if loop.first and message['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}
{{- '<|vision_bos|><|IMAGE|><|vision_eos|>' -}}
{%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}
{{- '<|audio_bos|><|AUDIO|><|audio_eos|>' -}}
{%- elif part['type'] == 'video' or 'video' in part -%}
{{- '<|vision_bos|><|VIDEO|><|vision_eos|>' -}}
{%- elif 'text' in part -%}
{{- part['text'] -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""Chat messages to the model's prompt, in the form of the real model's template."""
