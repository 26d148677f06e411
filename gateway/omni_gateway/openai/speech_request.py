"""The body of POST /v1/audio/speech, with OpenAI's field names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from omni_gateway.openai.body import Body
from omni_gateway.openai.chat_request import Seed, Voice
from omni_gateway.openai.chat_unsupported import Unread, Without, not_supported


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
    speed: Annotated[float, Field(ge=0.25, le=4.0)] | None = None
    """Only 1.0."""
    instructions: str | None = None
    """Only empty: the model speaks the given text, and no stage reads instructions."""
    language: str | None = None
    """Field of vLLM-Omni, a hint; without effect, because the model recognizes the language of the text."""
    lang_code: str | None = None
    """Field of Kokoro-FastAPI, a hint; without effect, like `language`."""
    volume_multiplier: float | None = None
    """Field of Kokoro-FastAPI; only 1.0."""
    user: Any = None
    """A label; without effect."""
    seed: Seed | None = None
    """vLLM extension: seed of every stage. -1, like null, lets each stage choose."""


def find_unread(request: SpeechRequest) -> Iterator[Unread]:
    """Yields the values that are not honoured."""
    if request.speed is not None and request.speed != 1.0:
        why = "speed must be 1.0: the models speak at one speed; change it when you play the audio"
        yield Unread("speed", why, Without.MEANING)
    if request.instructions:
        why = "instructions are not supported: the model speaks input word for word; leave them out"
        yield Unread("instructions", why, Without.MEANING)
    if request.volume_multiplier not in (None, 1.0):
        yield Unread("volume_multiplier", not_supported("volume_multiplier", 1.0), Without.MEANING)
    for name in ("language", "lang_code"):
        if getattr(request, name) is not None:
            yield Unread(name, "the model recognizes the language of the text", Without.HINT)
