"""What a session wants done, in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from omni_gateway.errors import GatewayError, answer_error
from omni_gateway.realtime.state.config import Config, Transcription, TurnDetection
from omni_gateway.realtime.state.items import Content
from omni_gateway.realtime.state.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Send:
    """Send an event to the client. It has no event_id yet."""

    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listen:
    """Find out whether the user speaks in a piece of audio, and pass turns to `Session.turn`."""

    data: bytes
    start_ms: float
    """Position of the piece in the session's audio."""
    settings: TurnDetection


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the pipeline, and pass what it returns to `Session.answer`."""

    response_id: str
    prompt: Prompt
    config: Config
    is_early: bool = False
    """Whether nothing may be passed before a Release, and a Stop may come instead."""


@dataclass(frozen=True, slots=True)
class Release:
    """Pass what the pipeline returns for a response that was asked early."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel the pipeline's work for a response. Nothing more of it is passed on."""

    response_id: str


@dataclass(frozen=True, slots=True)
class Transcribe:
    """Write down an item's audio, and pass it to `Session.transcribe`."""

    item_id: str
    audio: Content
    settings: Transcription


Effect = Send | Listen | Ask | Release | Stop | Transcribe


@dataclass(frozen=True, slots=True)
class Heard:
    """What the pipeline wrote down of an item's audio."""

    text: str
    usage: Mapping[str, Any] | None = None
    """Of the end; None for a piece."""
    error: GatewayError | None = None


def report_limits(limits: Mapping[str, str]) -> list[Effect]:
    """Returns the effects of a response that counts towards the key's limits. limits: the x-ratelimit-* headers."""
    if "x-ratelimit-limit-requests" not in limits:
        return []
    limit, remaining, reset = (limits[f"x-ratelimit-{one}-requests"] for one in ("limit", "remaining", "reset"))
    shown = {"limit": int(limit), "remaining": int(remaining), "reset_seconds": float(reset.removesuffix("s"))}
    return [Send({"type": "rate_limits.updated", "rate_limits": [{"name": "requests", **shown}]})]


def view_heard(item_id: str, heard: Heard) -> dict[str, Any]:
    """Returns the event of what the pipeline wrote down of an item's audio."""
    place = {"item_id": item_id, "content_index": 0}
    kind = "conversation.item.input_audio_transcription"
    if heard.error is not None:
        error = answer_error(heard.error).body["error"]
        # OpenAI's agents SDK knows no null here.
        shown = {name: value for name, value in error.items() if value is not None}
        return {"type": f"{kind}.failed", **place, "error": shown}
    if heard.usage is None:
        return {"type": f"{kind}.delta", **place, "delta": heard.text}
    return {"type": f"{kind}.completed", **place, "transcript": heard.text, "usage": dict(heard.usage)}
