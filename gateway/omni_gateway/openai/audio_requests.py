"""The body of POST /v1/audio/speech, and the forms of transcriptions and translations, with OpenAI's field names."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from omni_gateway.openai.body import Body, Sampled, Target, Unsupported, Without
from omni_gateway.openai.chat_request import Seed, Voice

_SPEED: Final = "speed must be 1.0: the models speak at one speed; change it when you play the audio"
_INSTRUCTIONS: Final = "instructions are not supported: the model speaks input word for word; leave them out"
_LANGUAGE: Final = "the model recognizes the language of the text"
_ANY_LANGUAGE: Final = ("auto", "")


class SpeechRequest(Body):
    """Text to speak, word for word."""

    model: str
    input: Annotated[str, Field(min_length=1)]
    voice: Voice | None = None
    """A voice from /v1/audio/voices, or an alias. Default: the model's first voice."""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] | None = None
    """Default: mp3. pcm: signed 16 bit, little-endian; the built-in models return one channel at 24,000 Hz."""
    stream_format: Literal["sse", "audio"] | None = None
    """Default: audio."""
    stream: bool | None = None
    """Field of Kokoro-FastAPI and vLLM-Omni; without effect, because the audio is always sent while it is made."""
    speed: Annotated[float | None, Field(ge=0.25, le=4.0), Unsupported(Without.MEANING, neutral=[1.0], why=_SPEED)] = (
        None
    )
    """Only 1.0."""
    instructions: Annotated[str | None, Unsupported(Without.MEANING, neutral=[""], why=_INSTRUCTIONS)] = None
    """Only empty: the model speaks the given text, and no stage reads instructions."""
    volume_multiplier: Annotated[float | None, Unsupported(Without.MEANING, neutral=[1.0])] = None
    """Field of Kokoro-FastAPI; only 1.0."""
    language: Annotated[str | None, Unsupported(Without.HINT, neutral=_ANY_LANGUAGE, why=_LANGUAGE)] = None
    """Field of vLLM-Omni, a hint; without effect, because the model recognizes the language of the text."""
    lang_code: Annotated[str | None, Unsupported(Without.HINT, neutral=_ANY_LANGUAGE, why=_LANGUAGE)] = None
    """Field of Kokoro-FastAPI, a hint; without effect, like `language`."""
    user: Any = None
    """A label; without effect."""
    seed: Seed | None = None
    """vLLM extension: seed of every stage. -1, like null, lets each stage choose."""


FILES: Final = frozenset({"file"})
TextFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
_WORDS: Final = "timestamp_granularities: only segment is supported; leave word out"
_SPEAKERS: Final = "known speakers are not supported: the models do not distinguish speakers; leave them out"


_CODE: Final = r"^[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8})*$"
_UNKNOWN: Final = frozenset(("", "auto", "detect", "multi", "und", "null", "none", "undefined"))
"""What programs send for a language that is not known: whisper.cpp's name, Deepgram's, that of ISO 639-2, and what
JavaScript and Python make of no value in a form."""


def read_language(value: Any) -> Any:
    """Returns a language as stages take it; None if the value names none. Raises PydanticCustomError."""
    if not isinstance(value, str):
        return value
    code = value.strip()
    if code.lower() in _UNKNOWN:
        return None
    if not re.match(_CODE, code):
        raise PydanticCustomError(
            "language",
            "Input should be a code of ISO 639-1 such as 'en'; leave it out, or send 'auto', to have the language "
            "recognized",
        )
    return code.replace("_", "-")


def _as_list(value: Any) -> Any:
    """A form has one text for a list with one item."""
    return [value] if isinstance(value, str) else value


class _AudioRequest(Sampled):
    model_config = ConfigDict(json_schema_extra={"additionalProperties": False})

    file: bytes
    """An audio file; its bytes decide its format. WAV, FLAC, MP3, AAC, Ogg, WebM or M4A."""
    model: str
    prompt: Annotated[str, Field(max_length=4096)] | None = None
    """A text that precedes the audio, or names that occur in it. A hint for the model."""
    response_format: TextFormat | None = None
    """Default: json. srt, vtt: only for models that state when words were spoken."""
    temperature: Annotated[float | None, Field(ge=0, le=1), Target.SAMPLING] = None
    """Default: 0."""
    seed: Seed | None = None
    """vLLM extension. -1, like no value, lets the stage choose."""
    language: Annotated[Annotated[str, Field(pattern=_CODE)] | None, BeforeValidator(read_language)] = None
    """The language that is spoken, in ISO 639-1, e.g. en. Default, and with auto: the model recognizes it."""
    stream: bool | None = None
    """Send the text while it is written, as server-sent events. Only with response_format json or text."""
    stream_include_usage: bool | None = None
    """vLLM extension: a last chunk with the usage, as vLLM sends it. OpenAI's last event has it in any case."""
    stream_continuous_usage_stats: Annotated[bool | None, Unsupported(Without.HINT, neutral=[False])] = None
    """vLLM extension, a hint; without effect: the usage comes at the end."""
    max_completion_tokens: Annotated[int | None, Unsupported(Without.HINT)] = None
    """vLLM extension, a hint; without effect, because a transcript is complete or an error."""
    hotwords: Annotated[str | None, Unsupported(Without.HINT)] = None
    """vLLM extension, a hint; without effect. `prompt` may hold names that occur in the audio."""


class TranslationRequest(_AudioRequest):
    """Audio, to be translated into English text."""

    to_language: Annotated[str | None, Unsupported(Without.MEANING, neutral=["en"])] = None
    """vLLM extension; only en."""


Words = Annotated[list[Annotated[str, Field(max_length=256)]], BeforeValidator(_as_list), Field(max_length=64)]


class TranscriptionRequest(_AudioRequest):
    """Audio, to be written down."""

    timestamp_granularities: Annotated[
        Annotated[list[Literal["word", "segment"]], BeforeValidator(_as_list), Field(max_length=2)] | None,
        Unsupported(Without.MEANING, neutral=[["segment"]], why=_WORDS),
    ] = None
    """Only segment, and only with response_format verbose_json."""
    chunking_strategy: Annotated[Any, Unsupported(Without.HINT, neutral=["auto"])] = None
    """A hint; without effect, because the model decides how it cuts audio."""
    languages: Annotated[Words | None, Unsupported(Without.HINT)] = None
    """A hint; without effect. `language` names the one that is spoken."""
    keywords: Annotated[Words | None, Unsupported(Without.HINT)] = None
    """A hint; without effect. `prompt` may hold names that occur in the audio."""
    include: Annotated[Words | None, Unsupported(Without.MEANING)] = None
    """Not supported: there are no logprobs."""
    known_speaker_names: Annotated[Words | None, Unsupported(Without.MEANING, why=_SPEAKERS)] = None
    """Not supported."""
    known_speaker_references: Annotated[Any, Unsupported(Without.MEANING, why=_SPEAKERS)] = None
    """Not supported."""
