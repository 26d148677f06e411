"""The tiny checkpoint's words: special tokens, chat template, and the text that its tokenizer is trained on."""

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
are the real model's; the tts tokens are nameless there."""

END_OF_TEXT = "<|im_end|>"
"""Ends a message, and so the thinker's reply."""

PADDING = "<|endoftext|>"
"""Pads batches; ends a document."""

SPEAKER_BOS_TOKENS = {"Chelsie": "<|tts_chelsie|>", "Ethan": "<|tts_ethan|>", "Aiden": "<|tts_aiden|>"}
"""The token that starts the talker's text, by speaker. The published speakers in their order, then one of our own: a
checkpoint may hold any number."""

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

CORPUS = (
    "system user assistant You are a helpful assistant.",
    "The sea is calm tonight and the moon stands over the harbour.",
    "A ship leaves in the morning with salt, wool and letters for the islands.",
    "People on the shore watch until the last white sail is gone.",
    "What do you see in this picture? What do you hear in this recording?",
    "I hear a voice that reads a short story about rain, rivers and bridges.",
    "Tell me what the weather is like, how far the road goes, and when the train arrives.",
    "The road goes through the hills, past the mill and the old stone bridge, to the town.",
    "Bread, water, fire and light: small words that every language has.",
    "When the wind turns, the birds turn with it and fly along the coast.",
    "Read the sentence slowly, then say it again with a clear and quiet voice.",
    "Three stages work together: one thinks, one talks, one makes the sound.",
    "Hello and good morning. Thank you, and good night.",
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve.",
    "It was late in the year; the leaves were red and the fields were empty.",
    "She opened the window and listened to the street, the bells and the market.",
    "Where does the river start? It starts in the mountains, under the snow.",
    "He wrote the numbers down, counted them twice, and closed the book.",
)
"""English sentences, written for this file."""
