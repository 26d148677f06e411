"""The parts of a user's prompt: text, decoded media, messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from omni_stage.exchange.reply_form import CalledTool, GivenReply, StructuredText, Tools

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from omni_stage.payloads import PromptEmbedsPayload


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a chat message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A decoded RGB image."""

    image: Image


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Decoded audio: float32 [samples], mono, in [-1, 1]."""

    samples: np.ndarray
    sampling_rate_hz: int


@dataclass(frozen=True, slots=True)
class VideoPart:
    """A decoded video."""

    frames: np.ndarray
    """uint8 [frames, height, width, 3], RGB, about two frames per second of video, scaled to
    TakesVideo.frame_size."""
    sound: AudioPart | None = None
    """The video's audio; None if the model reads only the frames."""


MediaPart = ImagePart | AudioPart | VideoPart
"""Decoded audio, image or video."""


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    parts: Sequence[TextPart | MediaPart]
    tool_calls: Sequence[CalledTool] = ()
    """Calls of tools that the assistant made in this message."""
    tool_call_id: str = ""
    """Id of the call that a message of the role "tool" answers."""
    name: str = ""
    """Name of the speaker, or of the tool that answers; empty if the client gave none."""


@dataclass(frozen=True, slots=True)
class UserPrompt:
    """The input of an entry stage. Exactly one of the first four fields is set."""

    text: str | None = None
    messages: Sequence[ChatMessage] | None = None
    token_ids: Sequence[int] | None = None
    prompt_embeds: PromptEmbedsPayload | None = None
    """Embeddings [rows, hidden size] in place of tokens. Only for engines with enablePromptEmbeds; `prepare` returns
    them as StageInput.prompt_embeds."""
    reply: GivenReply | None = None
    """A reply that the client gives, so that the model samples none. Set only if the component's facts say
    takes_reply."""
    tools: Tools | None = None
    """Tools that the model may call. Set only if the component's facts say takes_tools."""
    structured: StructuredText | None = None
    """The form that the text must have. Set only if the component's facts say structures_text."""
    template_arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template. Empty unless the component's facts say takes_tools."""

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
