"""Chat templates of tiny checkpoints, modelled on the published ones."""

from __future__ import annotations

END_OF_TEXT = "<|im_end|>"
"""Ends a message, and therefore the thinker's reply."""

PADDING = "<|endoftext|>"
"""Pads batches, and ends a document."""


def build_chat_template(*, image: str, audio: str, video: str, first: str = "", reply: str = "") -> str:
    """Returns a Jinja template that turns chat messages into the model's prompt.

    `image`, `audio`, `video`: the tokens that stand for a medium of this kind; `first`: Jinja statements that run
    before every message; `reply`: Jinja statements after the beginning of the assistant's message.
    """
    return (
        "{%- for message in messages -%}\n" + first + "{{- '<|im_start|>' + message['role'] + '\\n' -}}\n"
        "{%- if message['content'] is string -%}\n"
        "{{- message['content'] -}}\n"
        "{%- else -%}\n"
        "{%- for part in message['content'] -%}\n"
        "{%- if part['type'] == 'image' or 'image' in part or 'image_url' in part -%}\n"
        f"{{{{- '{image}' -}}}}\n"
        "{%- elif part['type'] == 'audio' or 'audio' in part or 'audio_url' in part -%}\n"
        f"{{{{- '{audio}' -}}}}\n"
        "{%- elif part['type'] == 'video' or 'video' in part -%}\n"
        f"{{{{- '{video}' -}}}}\n"
        "{%- elif 'text' in part -%}\n"
        "{{- part['text'] -}}\n"
        "{%- endif -%}\n"
        "{%- endfor -%}\n"
        "{%- endif -%}\n"
        "{{- '<|im_end|>\\n' -}}\n"
        "{%- endfor -%}\n"
        "{%- if add_generation_prompt -%}\n"
        "{{- '<|im_start|>assistant\\n' -}}\n" + reply + "{%- endif -%}\n"
    )
