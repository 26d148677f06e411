"""The messages of a chat, with OpenAI's field names: text, images, audio, video and tool calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Body(BaseModel):
    """Base of request bodies. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class TextPart(Body):
    """A text part of a message."""

    type: Literal["text"]
    text: str


class ImageUrl(Body):
    """The URL of an image."""

    url: str
    """data:image/png;base64,... or, if the gateway allows it, an https URL."""
    detail: Literal["auto", "low", "high"] | None = None
    """Only "auto": the image's size determines the detail."""


class ImagePart(Body):
    """An image, PNG or JPEG."""

    type: Literal["image_url"]
    image_url: ImageUrl


class VideoUrl(Body):
    """The URL of a video."""

    url: str
    """data:video/mp4;base64,... or, if the gateway allows it, an https URL."""


class VideoPart(Body):
    """A video in MP4, WebM, Matroska or QuickTime (vLLM's and OpenRouter's extension). Only for models that read
    video."""

    type: Literal["video_url"]
    video_url: VideoUrl


class InputAudio(Body):
    """Encoded audio."""

    data: str
    """The file, in base64."""
    format: Literal["wav", "mp3", "flac", "opus"]


class AudioPart(Body):
    """An audio part of a message."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class AudioUrl(Body):
    """The URL of audio."""

    url: str
    """data:audio/wav;base64,... or, if the gateway allows it, an https URL."""


class AudioUrlPart(Body):
    """Audio in WAV, FLAC, MP3 or Opus (vLLM's extension). The bytes show which of these it is."""

    type: Literal["audio_url"]
    audio_url: AudioUrl


class RefusalPart(Body):
    """The text with which an earlier answer refused."""

    type: Literal["refusal"]
    refusal: str


Media = ImagePart | AudioPart | AudioUrlPart | VideoPart
ContentPart = Annotated[TextPart | Media, Field(discriminator="type")]
AnswerPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]


class SystemMessage(Body):
    """Instructions for the whole conversation. "developer" is OpenAI's newer name for the role "system"."""

    role: Literal["system", "developer"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class UserMessage(Body):
    """A message of the user."""

    role: Literal["user"]
    content: str | Annotated[list[ContentPart], Field(min_length=1)]
    name: str | None = None


class PastAudio(Body):
    """The audio of an earlier answer. The model reads its transcript. An id alone is refused, because the gateway
    stores no audio."""

    id: str
    transcript: str | None = None
    data: Any = None
    """Without effect."""
    expires_at: Any = None
    """Without effect."""


class FunctionCall(Body):
    """A function that the model called."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: str
    """A JSON object, as text."""
    parsed_arguments: Any = None
    """Added by openai-python; without effect, because `arguments` says the same."""


class PastCall(Body):
    """A tool call of an earlier answer."""

    id: Annotated[str, Field(min_length=1, max_length=256)]
    type: Literal["function"]
    function: FunctionCall
    index: int | None = None
    """Sent by clients that join the pieces of a stream; without effect."""


class AssistantMessage(Body):
    """An earlier answer of the model. A client may append the message of an answer as its library returns it."""

    role: Literal["assistant"]
    content: str | Annotated[list[AnswerPart], Field(min_length=1)] | None = None
    name: str | None = None
    audio: PastAudio | None = None
    refusal: str | None = None
    reasoning: str | None = None
    """Without effect: the prompt does not contain it."""
    reasoning_content: str | None = None
    """Another name of `reasoning`; without effect."""
    parsed: Any = None
    """Added by openai-python and openai for Node; without effect, because `content` says the same."""
    annotations: Any = None
    """Without effect: the model does not read them."""
    provider_specific_fields: Any = None
    """Added by LiteLLM; without effect."""
    function_call: Any = None
    """Only null: the older form of tool_calls."""
    tool_calls: Annotated[list[PastCall], Field(max_length=128)] | None = None


class ToolMessage(Body):
    """The result of a tool call."""

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(min_length=1, max_length=256)]
    name: str | None = None
    """Name of the function that was called."""
    content: str | Annotated[list[TextPart], Field(min_length=1)]


def said_by(message: AssistantMessage) -> str | list[TextPart] | None:
    """Returns the text of an earlier answer: its content, or else its refusal or the transcript of its audio."""
    if isinstance(message.content, list):
        return [
            TextPart(type="text", text=part.refusal) if isinstance(part, RefusalPart) else part
            for part in message.content
        ]
    if message.content is not None:
        return message.content
    if message.refusal is not None:
        return message.refusal
    return None if message.audio is None else message.audio.transcript


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
