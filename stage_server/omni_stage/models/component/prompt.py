"""The parts of a user's prompt: text, decoded media, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from omni_proto.brief import Brief
from omni_stage.exchange import CalledTool, GivenReply, StructuredText, Tools

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from omni_stage.payloads import PromptEmbedsPayload


LIGHT_CHARS: Final = 16 << 10
"""Text of at most this length takes a few milliseconds to render and tokenize."""
_LIGHT_PARTS: Final = 64
_LIGHT_NUMBER: Final = 64
_HEAVY_ARGUMENT_CHARS: Final = 1 << 20
"""What an argument counts whose cost the template decides."""


@dataclass(frozen=True, slots=True, repr=False)
class TextPart(Brief):
    """Text of a chat message."""

    text: str


@dataclass(frozen=True, slots=True, repr=False)
class ImagePart(Brief):
    """A decoded RGB image."""

    image: Image
    key: str = ""
    """Equal only for media that are equal and whose requests have the same cache salt; empty if it is not known."""


@dataclass(frozen=True, slots=True, repr=False)
class AudioPart(Brief):
    """Decoded audio: float32 [samples], mono, in [-1, 1]."""

    samples: np.ndarray
    sampling_rate_hz: int
    damage: float = 0.0
    """The share of the file that was skipped because it is damaged, 0 to 1."""
    key: str = ""
    """See ImagePart."""


@dataclass(frozen=True, slots=True, repr=False)
class VideoPart(Brief):
    """A decoded video."""

    frames: np.ndarray
    """uint8 [frames, height, width, 3], RGB, about two frames per second of video, scaled to
    TakesVideo.frame_size."""
    audio: AudioPart | None = None
    """The video's audio; None if the model reads only the frames."""
    damage: float = 0.0
    """The share of the file that was skipped because it is damaged, 0 to 1."""
    key: str = ""
    """See ImagePart."""


MediaPart = ImagePart | AudioPart | VideoPart
"""Decoded audio, image or video."""


@dataclass(frozen=True, slots=True, repr=False)
class ChatMessage(Brief):
    """One message of a conversation."""

    role: str
    parts: Sequence[TextPart | MediaPart]
    tool_calls: Sequence[CalledTool] = ()
    """Calls of tools that the assistant made in this message."""
    tool_call_id: str = ""
    """Id of the call that a message of the role "tool" answers."""
    name: str = ""
    """Name of the speaker, or of the tool that answers; empty if the client gave none."""


@dataclass(frozen=True, slots=True, repr=False)
class UserPrompt(Brief):
    """The input of an entry stage. Exactly one of the first four fields is set."""

    text: str | None = None
    messages: Sequence[ChatMessage] | None = None
    token_ids: Sequence[int] | None = None
    prompt_embeds: PromptEmbedsPayload | None = None
    """Embeddings [rows, hidden size] in place of tokens. Only for engines with enablePromptEmbeds; `prepare` returns
    them as EngineInput.prompt_embeds."""
    written: bool = False
    """Whether the client wrote the last of `messages`, so that the entry stage, which hears, has nothing to hear. The
    stage that answers reads them as they are."""
    reply: GivenReply | None = None
    """A reply that the client gives, so that the model samples none. Set only if the component's facts say
    takes_reply, or if it passes replies on (StageConfig.passes_on)."""
    tools: Tools | None = None
    """Tools that the model may call. Set only if the component's facts say takes_tools, or if it passes them on."""
    structured: StructuredText | None = None
    """The form that the text must have. Set only if the component's facts say structures_text."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template. Empty unless the component's facts say takes_tools."""

    @property
    def chars(self) -> int:
        """How much text there is to render and tokenize, in characters."""
        chars = len(self.text or "") + len((self.reply and self.reply.text) or "")
        for message in self.messages or ():
            chars += sum(len(part.text) for part in message.parts if isinstance(part, TextPart))
            chars += len(message.name) + len(message.tool_call_id)
            chars += sum(len(call.id) + len(call.name) + _chars_of(call.arguments) for call in message.tool_calls)
        if self.tools is not None:
            chars += sum(len(tool.description) + _chars_of(tool.parameters) for tool in self.tools.tools)
        if not all(map(is_light_argument, self.template_arguments.values())):
            chars += _HEAVY_ARGUMENT_CHARS
        return chars

    @property
    def is_light(self) -> bool:
        """Whether rendering and tokenizing the prompt takes little time, whatever the chat template does with it."""
        parts = sum(len(message.parts) + len(message.tool_calls) for message in self.messages or ())
        return parts <= _LIGHT_PARTS and len(self.template_arguments) <= _LIGHT_PARTS and self.chars <= LIGHT_CHARS

    def field_of_largest(self, kind: str) -> str:
        """Returns the path in Start of the largest medium of a kind: "image", "audio" or "video"."""
        found = [
            (size, f"start.chat.messages[{number}].parts[{index}].{kind}")
            for number, message in enumerate(self.messages or ())
            for index, part in enumerate(message.parts)
            if (size := _size_of(part, kind)) is not None
        ]
        return max(found)[1] if found else "start.chat.messages"


def _size_of(part: TextPart | MediaPart, kind: str) -> int | None:
    """Returns the pixels or samples of a part of the kind; None for any other part."""
    if kind == "image" and isinstance(part, ImagePart):
        return int(part.image.width * part.image.height)
    if kind == "audio" and isinstance(part, AudioPart):
        return int(part.samples.size)
    return int(part.frames.size) if kind == "video" and isinstance(part, VideoPart) else None


def is_light_argument(value: Any) -> bool:
    """Returns whether a template argument cannot make a template loop for long: a switch, a word or a small number."""
    if isinstance(value, bool | None):
        return True
    if isinstance(value, int | float):
        return abs(value) <= _LIGHT_NUMBER
    return isinstance(value, str) and len(value) <= _LIGHT_NUMBER


def _chars_of(value: Any) -> int:
    """Returns roughly how long a value is as JSON. Not recursive, because the client chooses the depth."""
    chars, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        chars += len(item) if isinstance(item, str) else 8
        if isinstance(item, Mapping):
            waiting.extend(item.values())
            chars += sum(map(len, item))
        elif isinstance(item, list | tuple):
            waiting.extend(item)
    return chars
