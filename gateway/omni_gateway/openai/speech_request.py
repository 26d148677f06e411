"""The body of POST /v1/audio/speech, with OpenAI's field names."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from omni_gateway.openai.body import Body, Unsupported, Without
from omni_gateway.openai.chat_request import Seed, Voice

_SPEED: Final = "speed must be 1.0: the models speak at one speed; change it when you play the audio"
_INSTRUCTIONS: Final = "instructions are not supported: the model speaks input word for word; leave them out"
_LANGUAGE: Final = "the model recognizes the language of the text"


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
    language: Annotated[str | None, Unsupported(Without.HINT, why=_LANGUAGE)] = None
    """Field of vLLM-Omni, a hint; without effect, because the model recognizes the language of the text."""
    lang_code: Annotated[str | None, Unsupported(Without.HINT, why=_LANGUAGE)] = None
    """Field of Kokoro-FastAPI, a hint; without effect, like `language`."""
    user: Any = None
    """A label; without effect."""
    seed: Seed | None = None
    """vLLM extension: seed of every stage. -1, like null, lets each stage choose."""
