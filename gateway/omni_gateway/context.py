"""The state of a gateway, built by the app, and of one request, built by the guard: what guard and routes share."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from starlette.requests import Request

from omni_gateway.client_paths import NO_PATHS, ClientPaths
from omni_gateway.entries.connections import Entries
from omni_gateway.entries.holds import Holds
from omni_gateway.entries.pipelines import Pipelines, ServedPipeline
from omni_gateway.errors import GatewayError, TooLargeError, UnavailableError, to_error
from omni_gateway.rights import KeyRights
from omni_gateway.settings import GatewaySettings
from omni_gateway.telemetry import GatewayMetrics, GatewayTracing, RequestSpan
from omni_proto.client import ArgumentError, OmniRequestError

_BYTES: Final = 12


class Pseudonyms:
    """Makes the pseudonyms of users that the gateway sends to entry stages, with a random secret of this process.

    An entry stage delays its refusals to a client whose calls it refuses often. To the stage, all users of a gateway
    have the gateway's address. So the gateway adds a pseudonym to each call (omni_proto.rpc.options), and one user's
    refused calls do not delay another user's.
    """

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(hashlib.blake2s.MAX_KEY_SIZE)

    def of(self, key: str, address: str) -> str:
        """Returns a user's pseudonym, in hexadecimal digits: made from the API key's name, else from the address."""
        known = f"key {key}" if key else f"address {address}"
        return hashlib.blake2s(known.encode(), key=self._secret, digest_size=_BYTES).hexdigest()


class Budget:
    """Bytes that the bodies, decoded audio and media of all requests may hold together. Threads may share it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.left = total
        self.lock = threading.Lock()


class Share:
    """What one request holds of a budget."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0
        self._released = False
        self.counted = 0
        """Bytes that were added, whether they are still held or not."""
        self.paid = 0
        """Bytes whose cost was taken in advance; see guard/refusals.py."""

    def add(self, size: int) -> None:
        """Count further bytes; call it before they are kept.

        Raises UnavailableError if other requests hold too much, or if the share was released; TooLargeError if the
        request needs more than the whole budget.
        """
        with self._budget.lock:
            if self._held + size > self._budget.total:
                raise TooLargeError(
                    f"The request needs more than {self._budget.total} bytes of memory, the gateway's maxHeldBytes; "
                    "send smaller media, or fewer values."
                )
            if size > self._budget.left or self._released:
                raise UnavailableError("Too many large requests at once; try again.", retry_after_s=1)
            self._held += size
            self.counted += size
            self._budget.left -= size

    @property
    def held(self) -> int:
        """Bytes that are held."""
        return self._held

    def release(self) -> None:
        """Note that the bytes are no longer in memory. A thread that still decodes for this request stops when it next
        calls `add`, which then raises."""
        with self._budget.lock:
            self._budget.left += self._held
            self._held = 0
            self._released = True

    def remove(self, size: int) -> None:
        """Note that some of the bytes are no longer in memory."""
        with self._budget.lock:
            size = min(size, self._held)
            self._budget.left += size
            self._held -= size


@dataclass(frozen=True, slots=True)
class Ration:
    """What a session may use. The guard makes it."""

    new_share: Callable[[], Share]
    """Returns a share of the gateway's memory, for one response."""
    enter: Callable[[], tuple[Callable[[float], None], Mapping[str, str]]]
    """Counts a response that begins as a request of the session's key. Returns a function to call at its end, with the
    seconds of its audio, and the x-ratelimit-* headers of KeyLimiter. Raises RateLimitError, UnavailableError."""


@dataclass(slots=True)
class Gateway:
    """State of one gateway."""

    settings: GatewaySettings
    pipelines: Pipelines
    entries: Entries
    metrics: GatewayMetrics
    tracing: GatewayTracing = field(default_factory=GatewayTracing)
    pseudonyms: Pseudonyms = field(default_factory=Pseudonyms)
    reading: tuple[asyncio.Lock, asyncio.Lock] = field(default_factory=lambda: (asyncio.Lock(), asyncio.Lock()))
    """Held while a body is parsed in a thread: the first for short bodies, the second for long ones. Further threads
    would slow the event loop down."""
    draining: bool = False
    """Set on SIGTERM or SIGINT. From then on /ready fails, and each connection is closed after its answer."""
    holds: Holds = field(init=False)
    """The requests that wait for pipelines that sleep."""

    def __post_init__(self) -> None:
        self.holds = Holds(self.settings.sleep, self.pipelines, self.entries, self.metrics)

    def voice_aliases(self, pipeline: ServedPipeline) -> Mapping[str, str]:
        """Returns the names of voices in other APIs that requests for a pipeline may use, with the pipeline's names."""
        return pipeline.voice_aliases or self.settings.voice_aliases


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
    tokens: dict[str, int] = field(default_factory=dict)
    """Tokens of the answers that have ended, by kind; see answer.tokens_of."""
    paths: ClientPaths = NO_PATHS
    """The client's names of what the request to the entry stage is made of."""
    max_model_lens: Mapping[str, int] = field(default_factory=dict)
    """Longest sequence of the entry stage in tokens, by its name."""
    ignored: list[str] = field(default_factory=list)
    """Paths of the request's fields that were ignored, for the header x-omnipipeline-ignored."""
    first_seen: set[str] = field(default_factory=set)
    """Kinds of output, text and audio, whose first piece was timed."""
    error: str = ""
    """Code of the error with which a stage ended the answer after it had accepted the request."""

    @property
    def holder(self) -> str:
        """What the request counts for where each client may have some: the key's name, else the address."""
        return f"key {self.key}" if self.key else f"address {self.address}"

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
