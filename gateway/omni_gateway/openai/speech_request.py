"""The body of POST /v1/audio/speech, with OpenAI's field names."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from omni_gateway.openai.chat_request import VoiceId
from omni_gateway.openai.surrogates import Utf8Body


class SpeechRequest(Utf8Body):
    """Text to speak, word for word."""

    model: str
    input: Annotated[str, Field(min_length=1)]
    voice: str | VoiceId | None = None
    """A voice from /v1/audio/voices, or an alias. Default: the model's first voice."""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    """pcm: signed 16 bit, little-endian; the built-in models return one channel at 24,000 Hz."""
    stream_format: Literal["sse", "audio"] = "audio"
    speed: Annotated[float, Field(ge=0.25, le=4.0)] | None = None
    """Only 1.0."""
    instructions: str | None = None
    """Only empty: the model speaks the given text, and no stage reads instructions."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    """vLLM extension: seed of every stage."""


def find_unsupported(request: SpeechRequest) -> tuple[str, str] | None:
    """Returns the first field with an unsupported value, and an explanation with the remedy; None if there is none."""
    if request.speed is not None and request.speed != 1.0:
        return "speed", "speed must be 1.0: the models speak at one speed; change it when you play the audio"
    if request.instructions:
        return "instructions", "instructions are not supported: the model speaks input word for word; leave them out"
    return None
