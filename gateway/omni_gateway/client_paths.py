"""Translates the fields of Start, in the errors of stages, to the fields that the client sent. Pure.

This is the one place that knows both names. An error's param is always a field of the client's own body, or null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(
    r"(?:\bstart\.|\b(?=chat\.[a-z]|structured_output\b|template_arguments\b|prompt_token_ids\b|sampling\[))"
    r"[a-z_]+(?:\[\w*\]|\.[a-z_]+)*"
)
"""A field of Start in the text of an error, with or without `start.`."""
_PART: Final = re.compile(r"messages\[(\d+)\]\.parts(?:\[(\d+)\])?")
_WORD: Final = re.compile(r"[a-z_]*")
_SAMPLING: Final = re.compile(r"sampling(?:\[\w*\])?\.?")
_OF_FUNCTIONS: Final = re.compile(r"((?:tools|tool_calls)\[\d+\])\.(name|arguments|parameters|description|strict)")


@dataclass(frozen=True, slots=True)
class ClientPaths:
    """The client's names of what a request to a stage is made of."""

    prompt: str = "messages"
    """The field with the text that the model reads or speaks."""
    voice: str = "audio.voice"
    parts: Sequence[Sequence[str]] = ()
    """For each message, the path of each of its parts."""
    form: Mapping[str, str] | None = None
    """The client's name of each field of structured_output that it set."""
    max_tokens: str = "max_completion_tokens"
    has_messages: bool = False
    """Whether the messages of Start are the client's."""
    own: Collection[str] = ()
    """The client's fields that Start, or the answering stage's sampling parameters, have under the same name."""

    def translate(self, field: str) -> str | None:
        """Returns the client's path of a field of Start, or of the engine's request; None if the client has none."""
        name = field.removeprefix("start.")
        if name.startswith("sampling"):
            return self._of_own(_SAMPLING.sub("", name, count=1))
        if (own := self._of_own(name)) is not None:
            return own
        head, _, rest = name.partition(".")
        if head == "chat":
            return self._of_chat(rest)
        if head == "audio":
            return self.voice
        if head in ("structured_output", "structured_outputs"):
            return self._of_form(rest)
        if head.partition("[")[0] in ("template_arguments", "tools", "tool_choice", "use_audio_in_video"):
            return self._of_chat(name)
        is_prompt = head in ("reply", "input", "text", "token_ids", "prompt", "prompt_token_ids", "multi_modal_data")
        return self.prompt if is_prompt else None

    def translate_text(self, text: str) -> str:
        """Returns a text about the request with the client's names of the fields."""
        text = _NAME.sub(lambda found: self.translate(found[0]) or found[0].removeprefix("start."), text)
        return text.replace("max_tokens", self.max_tokens) if self.has_messages else text

    def _of_own(self, name: str) -> str | None:
        if name.partition("[")[0] not in self.own:
            return None
        return self.max_tokens if name == "max_tokens" else name

    def _of_chat(self, name: str) -> str | None:
        if not self.has_messages:
            return self.prompt
        if name.startswith("template_arguments"):
            return name.replace("template_arguments", "chat_template_kwargs", 1)
        if name.startswith("tools"):
            return _OF_FUNCTIONS.sub(r"\1.function.\2", name)
        if name.startswith("tool_choice"):
            return "tool_choice"
        if name == "use_audio_in_video":
            return "mm_processor_kwargs.use_audio_in_video"
        if found := _PART.match(name):
            return self._of_part(int(found[1]), None if found[2] is None else int(found[2]))
        return _OF_FUNCTIONS.sub(r"\1.function.\2", name) if name.startswith("messages") else self.prompt

    def _of_part(self, message: int, part: int | None) -> str:
        paths = self.parts[message] if message < len(self.parts) else ()
        return paths[part] if part is not None and part < len(paths) else f"messages[{message}].content"

    def _of_form(self, name: str) -> str | None:
        if not self.form:
            return None
        found = _WORD.match(name)
        kind = found[0] if found else ""
        known = self.form.get(kind)
        if known is None:
            return next(iter(self.form.values())).partition(".")[0]
        return known + name[len(kind) :].removeprefix(".texts")


SPEECH: Final = ClientPaths(prompt="input", voice="voice", own=("seed",))
"""Of a speech request: its messages in Start are the gateway's own."""
TRANSCRIPT: Final = ClientPaths(prompt="file", voice="model", own=("seed", "temperature"))
"""Of a request for a transcript: its message in Start holds the file."""
NO_PATHS: Final = ClientPaths(prompt="model", voice="model")
"""Of a request that the gateway makes by itself to describe a model."""
