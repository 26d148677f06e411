"""Settings of a gateway: one YAML file (a ConfigMap in a cluster), or the defaults."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class GatewaySettingsError(ValueError):
    """The settings file cannot be read or has a wrong field, or tracing is requested but OpenTelemetry is not
    installed."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class UnsupportedFields(StrEnum):
    """What happens to a field of a request that the gateway does not know or does not support."""

    REFUSE = "Refuse"
    """The request is refused, and the error names the field."""
    IGNORE = "Ignore"
    """The field is ignored, and a header of the answer names it."""


class MediaSettings(_Model):
    """Limits of images, audio and videos in requests. Stages have their own limits for decoded media."""

    max_items: Annotated[int, Field(ge=0, le=64)] = 8
    """Maximum number of images, audio files and videos in one request, together."""
    max_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 24 << 20
    """Maximum size of one file in bytes."""
    fetch_https: bool = False
    """Whether image_url, audio_url and video_url may be https URLs. Non-public addresses are always refused."""
    fetch_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Maximum time to fetch one file, in seconds."""


class RealtimeSettings(_Model):
    """Limits of the sessions of /v1/realtime."""

    max_sessions: Annotated[int, Field(ge=0, le=100_000)] = 512
    """Maximum number of sessions in this process. 0 turns the API off."""
    max_sessions_per_key: Annotated[int, Field(ge=1, le=100_000)] = 64
    """Maximum number of sessions of one API key, or of one address if there are no keys, in this process."""
    session_seconds: Annotated[float, Field(gt=0, le=86_400)] = 3600.0
    """Maximum duration of a session, in seconds."""
    session_bytes: Annotated[int, Field(ge=1 << 16, le=1 << 30)] = 32 << 20
    """Maximum memory of a session's items and audio, in bytes. It counts towards max_held_bytes. PCM takes 2.9 MB a
    minute. When it is used up, the audio of the oldest items is forgotten."""
    early_silence_ms: Annotated[int, Field(ge=0, le=30_000)] = 0
    """After this silence within a user's turn, in ms, the answer is begun, and dropped if the user continues. 0: the
    answer is begun when the turn is over."""


class SleepSettings(_Model):
    """Limits of the requests that wait for pipelines that sleep. What they hold counts towards max_held_bytes."""

    max_held: Annotated[int, Field(ge=0, le=1_000_000)] = 256
    """Maximum number of requests that wait in this process. Each also counts towards max_requests."""
    max_held_per_key: Annotated[int, Field(ge=0, le=1_000_000)] = 64
    """Maximum number of waiting requests of one API key, or of one address if there are no keys, in this process."""
    held_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600.0
    """Maximum time that a request waits, in seconds; then it gets 503. request_seconds begins after the wait."""


class GatewaySettings(_Model):
    """Settings of a gateway."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 48 << 20
    """Maximum size of a request's body in bytes. If content-length is larger, the body is not read."""
    body_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Maximum time for a request's body to arrive, in seconds."""
    max_held_bytes: Annotated[int, Field(ge=1024, le=1 << 40)] = 384 << 20
    """Maximum memory of the bodies and media of all requests together, in bytes. The process needs about 90 MiB more,
    twice max_body_bytes while it parses a body, and a reserve for freed memory that is not returned yet."""
    max_prompt_chars: Annotated[int, Field(ge=1, le=1 << 24)] = 1 << 20
    """Maximum number of characters of text in a request's messages."""
    max_speech_chars: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Maximum number of characters to speak in one request. OpenAI's own limit is 4,096."""
    unsupported_fields: UnsupportedFields = UnsupportedFields.REFUSE
    """Ignore: requests with fields that are unknown or not supported are answered without them, and the header
    x-omnipipeline-ignored names these fields. docs/gateway.md lists what is refused nevertheless."""
    media: MediaSettings = MediaSettings()
    """Limits of images, audio and videos."""
    realtime: RealtimeSettings = RealtimeSettings()
    """Limits of the sessions of /v1/realtime."""
    sleep: SleepSettings = SleepSettings()
    """Limits of the requests that wait for pipelines that sleep."""
    request_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Deadline of a request, in seconds, for all stages together."""
    send_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """If a client reads nothing of an answer for this time, it is disconnected and its request is cancelled."""
    keep_alive_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """After this time without an event, a streamed answer gets a comment, which keeps the connection open."""
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Maximum number of concurrent requests in this process; further ones get 503, except /health, /ready, /metrics.
    As many bodies again may be on their way."""
    keys_file: Path | None = None
    """File of API keys, e.g. from a mounted Secret; see docs/gateway.md. None: every request is accepted."""
    voices_without_key: bool = False
    """Whether GET /v1/audio/voices and /v1/audio/models need no key. Open WebUI sends none for them."""
    cors_origins: tuple[Annotated[str, Field(max_length=512)], ...] = ()
    """Origins whose pages may call the API, e.g. https://app.example.com; "*" allows any origin."""
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 300.0
    """How long requests in flight may take to end once the gateway accepts no new ones."""
    drain_notice_seconds: Annotated[float, Field(ge=0, le=3600)] = 8.0
    """Time after SIGTERM in which /ready fails and requests are still accepted. The default is longer than the 5 s for
    which httpx, and so OpenAI's client, keeps an idle connection. So when the gateway closes its idle connections at
    the end of this time, these clients do not use them any more."""
    entry_ca: str | None = None
    """PEM file with the CAs that signed the certificates of grpcs:// entries. None: the public CAs."""
    entry_certificate: str | None = None
    """PEM file with the gateway's certificate, for entries that require client certificates."""
    entry_key: str | None = None
    """PEM file with the key of entry_certificate."""
    model_aliases: dict[str, str] = Field(default_factory=dict)
    """Further names of the pipelines of --endpoint, e.g. {tts-1: qwen}. Pipelines of a cluster use spec.aliases.models.
    """
    voice_aliases: dict[str, str] = Field(default_factory=dict)
    """Names of voices in other APIs, e.g. {alloy: Chelsie}, for pipelines without aliases of their own."""


def load_settings(path: Path | None) -> GatewaySettings:
    """Returns the settings in a file, or the defaults if path is None. Raises GatewaySettingsError."""
    if path is None:
        return GatewaySettings()
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return GatewaySettings.model_validate(data)
    except (OSError, yaml.YAMLError) as error:
        raise GatewaySettingsError(f"{path}: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise GatewaySettingsError(f"{path}: {wrong}") from error
