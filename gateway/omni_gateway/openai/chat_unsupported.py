"""Finds values of OpenAI's fields that this gateway does not support. They are refused, never ignored."""

from __future__ import annotations

from omni_gateway.openai.chat_messages import AssistantMessage, ImagePart, said_by
from omni_gateway.openai.chat_request import ChatRequest

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "reasoning_effort": (),
    "verbosity": (),
    "prediction": (),
    "web_search_options": (),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
}
"""By field, the values that have no effect. They are accepted, and every other value is refused."""


def find_unsupported(request: ChatRequest) -> tuple[str, str] | None:
    """Returns the first field with an unsupported value, and an explanation with the remedy; None if there is none."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            taken = " or ".join(repr(one) for one in neutral)
            return name, f"{name} is not supported here; leave it out" + (f" or send {taken}" if taken else "")
    for index, message in enumerate(request.messages):
        if isinstance(message, AssistantMessage):
            if message.function_call is not None:
                return f"messages[{index}].function_call", "function_call is not supported here; send tool_calls"
            if said_by(message) is None and message.audio is not None:
                return f"messages[{index}].audio", "audio.id is not kept here; send the transcript as content"
            if said_by(message) is None and not message.tool_calls:
                return f"messages[{index}].content", "an assistant message needs content"
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(part, ImagePart) and part.image_url.detail not in (None, "auto"):
                where = f"messages[{index}].content[{place}].image_url.detail"
                return where, "detail must be 'auto': the model decides by the image's size"
    if request.stream_options is not None:
        if not request.stream:
            return "stream_options", "stream_options needs stream: true"
        if request.stream_options.include_obfuscation:
            return "stream_options.include_obfuscation", "include_obfuscation is not supported; send false"
    return None
