"""Settings of a gateway: one YAML file (a ConfigMap in a cluster), or the defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class SettingsError(ValueError):
    """The settings' file cannot be read or names a field wrongly. The message names the field."""


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )


class MediaSettings(_Model):
    """Bounds of images, audio and videos in requests. The stage has limits of its own for decoded media."""

    max_items: Annotated[int, Field(ge=0, le=64)] = 8
    """Most images, audio files and videos of one request."""
    max_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 24 << 20
    """Most bytes of one file."""
    max_audio_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    """Longest MP3 or Opus file, which the gateway decodes; the stage bounds WAV and FLAC."""
    fetch_https: bool = False
    """Whether image_url and video_url may be https addresses. Addresses of the cluster and of this host are always
    refused."""
    fetch_seconds: Annotated[float, Field(gt=0, le=300)] = 10.0
    """Longest time to fetch an image or a video."""


class GatewaySettings(_Model):
    """Settings of a gateway."""

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 48 << 20
    """Most bytes of a request's body; a longer one is refused before it is read."""
    body_seconds: Annotated[float, Field(gt=0, le=3600)] = 60.0
    """Longest time that a request's body may take to arrive."""
    max_prompt_chars: Annotated[int, Field(ge=1, le=1 << 24)] = 1 << 20
    """Most characters of a request's text."""
    max_speech_chars: Annotated[int, Field(ge=1, le=1 << 20)] = 4096
    """Maximum characters of text to speak in one request; OpenAI's own limit is 4,096."""
    media: MediaSettings = MediaSettings()
    """Bounds of images, audio and videos."""
    request_seconds: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Deadline of a request in all stages."""
    send_seconds: Annotated[float, Field(gt=0, le=3600)] = 30.0
    """Longest time that a client may read nothing of a streamed answer; then the request is cancelled."""
    keep_alive_seconds: Annotated[float, Field(gt=0, le=3600)] = 15.0
    """Silence in a streamed answer after which a comment keeps the connection open."""
    max_requests: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Most requests at once in this process; further ones get 503."""
    keys_file: Path | None = None
    """File of API keys, e.g. of a mounted Secret; see docs/gateway.md. None: every request is let in."""
    cors_origins: tuple[Annotated[str, Field(max_length=512)], ...] = ()
    """Origins whose pages may call the API, e.g. https://app.example.com; "*" is any."""
    drain_seconds: Annotated[float, Field(ge=0, le=3600)] = 300.0
    """How long requests in flight may take to end after SIGTERM."""
    drain_notice_seconds: Annotated[float, Field(ge=0, le=3600)] = 8.0
    """Time after SIGTERM in which /ready fails and requests are still accepted. Longer than the 5 s for which httpx,
    and so OpenAI's client, keeps an idle connection: clients no longer use those that are idle at the end."""
    entry_ca: str | None = None
    """PEM file with the CAs that signed the certificates of entries with grpcs://; none: the public ones."""
    entry_certificate: str | None = None
    """PEM file with the gateway's certificate, for entries that require one of their clients."""
    entry_key: str | None = None
    """PEM file with its key."""
    model_aliases: dict[str, str] = Field(default_factory=dict)
    """Pipelines of --endpoint by further names, e.g. {tts-1: qwen}; those of a cluster have spec.aliases.models."""
    voice_aliases: dict[str, str] = Field(default_factory=dict)
    """Voices by names of other APIs, for pipelines that name none themselves, e.g. {alloy: Chelsie}."""


def load_settings(path: Path | None) -> GatewaySettings:
    """Returns the settings of a file; the defaults without one. Raises SettingsError."""
    if path is None:
        return GatewaySettings()
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        return GatewaySettings.model_validate(data)
    except (OSError, yaml.YAMLError) as error:
        raise SettingsError(f"{path}: {error}") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise SettingsError(f"{path}: {wrong}") from error
