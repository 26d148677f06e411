"""The messages of a chat, by OpenAI's names: what was said before, and images, audio and video."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """Base of request bodies: unknown fields are errors, values are not converted from other types."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TextPart(Body):
    """Text."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """Where an image is."""

    url: str
    """data:image/png;base64,... or, where it is switched on, an https address."""
    detail: Literal["auto", "low", "high"] | None = None
    """Only "auto": the model decides by the image's size."""


class ImagePart(Body):
    """An image, PNG or JPEG."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(Body):
    """Where a video is."""

    url: str
    """data:video/mp4;base64,... or, where it is switched on, an https address."""


class VideoPart(Body):
    """vLLM's and OpenRouter's: a video, MP4, WebM, Matroska or QuickTime; only of models that read video."""

    type: Literal["video_url"]
    video_url: VideoUrl


class InputAudio(Body):
    """Encoded audio."""

    data: str
    """base64."""
    format: Literal["wav", "mp3", "flac", "opus"]


class AudioPart(Body):
    """Audio."""

    type: Literal["input_audio"]
    input_audio: InputAudio


ContentPart = Annotated[TextPart | ImagePart | AudioPart | VideoPart, Field(discriminator="type")]


class SystemMessage(Body):
    """Instructions for the whole conversation. "developer" is OpenAI's newer name of the same."""

    role: Literal["system", "developer"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class UserMessage(Body):
    """What the user says."""

    role: Literal["user"]
    content: str | Annotated[list[ContentPart], Field(min_length=1)]
    name: str | None = None


class PastAudio(Body):
    """An earlier spoken answer. The gateway keeps none: send its transcript as content."""

    id: str


class FunctionCall(Body):
    """A function that the model called."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str
    """A JSON object, as text."""


class PastCall(Body):
    """A tool call of an earlier answer."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Body):
    """What the model answered before."""

    role: Literal["assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)] | None = None
    name: str | None = None
    audio: PastAudio | None = None
    refusal: str | None = None
    tool_calls: Annotated[list[PastCall], Field(max_length=128)] | None = None


class ToolMessage(Body):
    """What a tool answered."""

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]
    content: str | Annotated[list[TextPart], Field(min_length=1)]


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
