"""The messages of a chat, with OpenAI's field names: text, images, audio, video and tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field

from omni_gateway.openai.body import LIST, OBJECT, Body, CacheHints, Text, by_kind


class TextPart(CacheHints):
    """A text part of a message."""

    type: Literal["text"]
    text: str
    annotations: Any = None
    """Added by LangChain to the parts of an answer, like the next three; without effect."""
    extras: Any = None
    id: Any = None
    index: Any = None


class ImageUrl(CacheHints):
    """The URL of an image."""

    url: str
    """data:image/png;base64,... or, if the gateway allows it, an https URL."""
    detail: Literal["auto", "low", "high", "original"] | None = None
    """A hint; without effect, because the image's size determines the detail."""


class ImagePart(CacheHints):
    """An image: PNG, JPEG, WebP or GIF."""

    type: Literal["image_url"]
    image_url: Annotated[Text | Annotated[ImageUrl, OBJECT], by_kind("a URL or an object with url")]


class VideoUrl(CacheHints):
    """The URL of a video."""

    url: str
    """data:video/mp4;base64,... or, if the gateway allows it, an https URL."""


class VideoPart(CacheHints):
    """A video in MP4, WebM, Matroska or QuickTime (vLLM's and OpenRouter's extension). Only for models that read
    video."""

    type: Literal["video_url"]
    video_url: Annotated[Text | Annotated[VideoUrl, OBJECT], by_kind("a URL or an object with url")]


class InputAudio(CacheHints):
    """Encoded audio."""

    data: str
    """The file, in base64."""
    format: Annotated[str, Field(max_length=64)] | None = None
    """A hint, without effect: the bytes show the format."""


class AudioPart(CacheHints):
    """An audio part of a message."""

    type: Literal["input_audio"]
    input_audio: InputAudio


class AudioUrl(CacheHints):
    """The URL of audio."""

    url: str
    """data:audio/wav;base64,... or, if the gateway allows it, an https URL."""


class AudioUrlPart(CacheHints):
    """Audio (vLLM's extension). The bytes show its format."""

    type: Literal["audio_url"]
    audio_url: Annotated[Text | Annotated[AudioUrl, OBJECT], by_kind("a URL or an object with url")]


class RefusalPart(CacheHints):
    """The text with which an earlier answer refused."""

    type: Literal["refusal"]
    refusal: str


Media = ImagePart | AudioPart | AudioUrlPart | VideoPart
ContentPart = Annotated[TextPart | Media, Field(discriminator="type")]
AnswerPart = Annotated[TextPart | RefusalPart, Field(discriminator="type")]

_PARTS: Final = "a text or a list of parts"
_PART = by_kind("a text or an object with type")
# A plain text in a list is a text part, as in vLLM: LangChain sends such lists unchanged.
_ContentParts = Annotated[list[Annotated[Text | Annotated[ContentPart, OBJECT], _PART]], Field(fail_fast=True)]
_AnswerParts = Annotated[list[Annotated[Text | Annotated[AnswerPart, OBJECT], _PART]], Field(fail_fast=True)]
_TextParts = Annotated[list[Annotated[Text | Annotated[TextPart, OBJECT], _PART]], Field(fail_fast=True)]
Texts = Annotated[Text | Annotated[_TextParts, LIST], by_kind(_PARTS)]


class _Message(CacheHints):
    name: str | None = None
    """Name of the speaker, or of the function that was called; the chat template may read it."""
    id: Any = None
    """A label of the client; without effect."""


class SystemMessage(_Message):
    """Instructions for the whole conversation. "developer" is OpenAI's newer name for the role "system"."""

    role: Literal["system", "developer"]
    content: Texts


class UserMessage(_Message):
    """A message of the user."""

    role: Literal["user"]
    content: Annotated[Text | Annotated[_ContentParts, LIST], by_kind(_PARTS)]


class PastAudio(Body):
    """The audio of an earlier answer. The model reads its transcript. An id alone is refused, because the gateway
    stores no audio."""

    id: str | None = None
    transcript: str | None = None
    data: Any = None
    """Without effect."""
    expires_at: Any = None
    """Without effect."""


class FunctionCall(Body):
    """A function that the model called. The name is as the model wrote it, perhaps empty or none that was offered."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    name: Annotated[str, Field(max_length=256)]
    arguments: Annotated[Text | Annotated[dict[str, Any], OBJECT], by_kind("JSON text or an object")] = ""
    """A JSON object, usually as text."""


class PastCall(Body):
    """A tool call of an earlier answer. Programs add fields of their own, such as `index` or a signature, and send them
    back; they have no effect. Some servers give calls no id. A refusal would end the conversation, because each later
    request repeats the call."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"additionalProperties": True})

    id: Annotated[str, Field(max_length=256)] = ""
    type: Literal["function", ""] = "function"
    function: FunctionCall


class AssistantMessage(_Message):
    """An earlier answer of the model. A client may append the message of an answer as its library returns it."""

    role: Literal["assistant"]
    content: Annotated[Text | Annotated[_AnswerParts, LIST], by_kind(_PARTS)] | None = None
    audio: PastAudio | None = None
    refusal: str | None = None
    reasoning: Any = None
    """Without effect, like the next four: the prompt does not contain it."""
    reasoning_content: Any = None
    reasoning_details: Any = None
    reasoning_items: Any = None
    thinking_blocks: Any = None
    input_transcript: Any = None
    """What the model heard of the message before. If the entry stage writes down what it hears, these words replace the
    audio of that message; otherwise without effect."""
    parsed: Any = None
    """Added by openai-python and openai for Node; without effect, because `content` says the same."""
    annotations: Any = None
    """Without effect, like the next three: the model does not read them."""
    citations: Any = None
    images: Any = None
    phase: Any = None
    provider_specific_fields: Any = None
    """Added by LiteLLM; without effect."""
    extra_content: Any = None
    """Added by Gemini's API; without effect."""
    function_call: Any = None
    """Only null: the older form of tool_calls."""
    tool_calls: Annotated[list[PastCall], Field(fail_fast=True, max_length=128)] | None = None


class ToolMessage(_Message):
    """The result of a tool call."""

    role: Literal["tool"]
    tool_call_id: Annotated[str, Field(max_length=256)] = ""
    """Empty if the call has no id."""
    content: Texts = ""


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


@dataclass(frozen=True, slots=True)
class MessagePart:
    """One part of what a message says."""

    path: str
    """Path of the part below its message, such as ".content[0]"."""
    content: str | Media


def parts_of(message: Message) -> list[MessagePart]:
    """Returns what the model reads of a message. Of an earlier answer without content, this is its refusal or the
    transcript of its audio."""
    content = message.content
    if not content and isinstance(message, AssistantMessage):
        # LangChain sends content "" with the audio or the refusal of an answer.
        if message.refusal is not None:
            return [MessagePart(".refusal", message.refusal)]
        if message.audio is not None:
            return [MessagePart(".audio.transcript", message.audio.transcript)] if message.audio.transcript else []
    if isinstance(content, list):
        parts = [MessagePart(f".content[{index}]", _content_of(part)) for index, part in enumerate(content)]
        return parts or [MessagePart(".content", "")]
    return [] if content is None else [MessagePart(".content", content)]


def _content_of(part: str | TextPart | RefusalPart | Media) -> str | Media:
    if isinstance(part, TextPart):
        return part.text
    return part.refusal if isinstance(part, RefusalPart) else part


def url_of(part: ImagePart | VideoPart | AudioUrlPart) -> tuple[str, str]:
    """Returns the path of a part's URL below the part, such as ".image_url.url", and the URL itself."""
    name = part.type
    value = getattr(part, name)
    return (f".{name}", value) if isinstance(value, str) else (f".{name}.url", value.url)
