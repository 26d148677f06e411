"""The state that all routes share, built by the app, and the facts of one request, built by the guard."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from omni_gateway.client_paths import NO_PATHS, ClientPaths
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.pipelines import Pipelines, ServedPipeline
from omni_gateway.errors import GatewayError, to_error
from omni_gateway.guard.budget import Share
from omni_gateway.guard.pseudonyms import Pseudonyms
from omni_gateway.guard.rights import KeyRights
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry.metrics import GatewayMetrics
from omni_gateway.telemetry.tracing import RequestSpan, Tracing
from omni_proto.client import ArgumentError, OmniRequestError


@dataclass(slots=True)
class Gateway:
    """State of one gateway."""

    settings: GatewaySettings
    pipelines: Pipelines
    entries: Entries
    metrics: GatewayMetrics
    tracing: Tracing = field(default_factory=Tracing)
    pseudonyms: Pseudonyms = field(default_factory=Pseudonyms)
    reading: tuple[asyncio.Lock, asyncio.Lock] = field(default_factory=lambda: (asyncio.Lock(), asyncio.Lock()))
    """Held while a body is parsed in a thread: the first for short bodies, the second for long ones. Further threads
    would slow the event loop down."""
    draining: bool = False
    """Set on SIGTERM or SIGINT. From then on /ready fails, and each connection is closed after its answer."""


@dataclass(slots=True)
class Call:
    """One request."""

    id: str
    """The request's id in all logs and in the header x-request-id."""
    body_share: Share
    """Memory of the body, until its values are read."""
    media_share: Share
    """Memory of the media, until the request ends."""
    traceparent: str | None = None
    """The traceparent header for the entry stage. It names the gateway's span if there is one, else the client's span.
    """
    span: RequestSpan = field(default_factory=RequestSpan)
    key: str = ""
    """Name of the API key; empty until a valid key was found, and if the request needs none."""
    rights: KeyRights = field(default_factory=KeyRights)
    """What the API key may do."""
    address: str = ""
    """The client's address, without the port."""
    model: str = ""
    started: float = field(default_factory=time.monotonic)
    audio_seconds: float = 0.0
    """Seconds of audio that stages have returned so far."""
    paths: ClientPaths = NO_PATHS
    """The client's names of what the request to the entry stage is made of."""
    max_model_lens: Mapping[str, int] = field(default_factory=dict)
    """Longest sequence of the entry stage in tokens, by its name."""
    ignored: list[str] = field(default_factory=list)
    """Paths of the request's fields that were ignored, for the header IGNORED_HEADER."""
    first_seen: set[str] = field(default_factory=set)
    """Kinds of output, text and audio, whose first piece was timed."""
    error: str = ""
    """Code of the error with which a stage ended the answer after it had accepted the request."""

    def explain(self, error: OmniRequestError | ArgumentError) -> GatewayError:
        """Returns the client's error for a failed call of the entry stage."""
        return to_error(error, self.paths, self.max_model_lens, pipeline=self.model)


def gateway_of(request: Request) -> Gateway:
    """Returns the gateway that serves the request."""
    return cast(Gateway, request.app.state.gateway)


def pipelines_of(request: Request) -> list[ServedPipeline]:
    """Returns the pipelines that the request's key may use."""
    return call_of(request).rights.filter(gateway_of(request).pipelines.list_pipelines())


def call_of(request: Request) -> Call:
    """Returns the facts that the guard collected about the request."""
    return cast(Call, request.scope["omni_call"])
