"""The handshake of a session: who may open one over a WebSocket, and the place that it has until it closes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Message, Send

from omni_gateway.errors import NotImplementedHereError, OriginError, RateLimitError, UnavailableError
from omni_gateway.settings import GatewaySettings

REALTIME: Final = "/v1/realtime"
"""Path of the only route that is a WebSocket."""
KEY_PROTOCOL: Final = "openai-insecure-api-key."
"""Begin of the sub-protocol with which browsers send a key, because they cannot send a header."""


def presented_key(headers: Headers) -> str | None:
    """Returns the key of a handshake in the form of an Authorization header; None if it has none."""
    given = headers.get("authorization")
    if given is not None:
        return given
    offered = ",".join(headers.getlist("sec-websocket-protocol")).split(",")
    keys = [one.strip() for one in offered if one.strip().startswith(KEY_PROTOCOL)]
    return f"Bearer {keys[0].removeprefix(KEY_PROTOCOL)}" if keys else None


def check_origin(headers: Headers, settings: GatewaySettings) -> None:
    """Raises OriginError if a page of another origin opens the session. Browsers let each page open WebSockets to any
    server, so a page could use a gateway without keys in its reader's network."""
    origin = headers.get("origin")
    if origin is None or "*" in settings.cors_origins or origin in settings.cors_origins:
        return
    if urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise OriginError(f"Pages of {origin[:128]!r} may not use this gateway; its setting corsOrigins lists others.")


class SessionPlaces:
    """Counts the open sessions. Use from one event loop."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._limits = settings.realtime
        self._held: dict[str, int] = {}

    @contextmanager
    def enter(self, holder: str) -> Iterator[None]:
        """Holds a place inside the block. holder: the key or the address. Raises GatewayError."""
        if not self._limits.max_sessions:
            raise NotImplementedHereError(f"{REALTIME} is turned off here; use /v1/chat/completions with stream: true.")
        if sum(self._held.values()) >= self._limits.max_sessions:
            raise UnavailableError("The gateway has as many sessions as it allows; try again.", retry_after_s=1)
        if self._held.get(holder, 0) >= self._limits.max_sessions_per_key:
            raise RateLimitError(
                f"{self._limits.max_sessions_per_key} sessions are open, the limit in this replica; close some."
            )
        self._held[holder] = self._held.get(holder, 0) + 1
        try:
            yield
        finally:
            self._held[holder] -= 1
            if not self._held[holder]:
                del self._held[holder]


def answer_handshake(send: Send) -> Send:
    """Returns a function that sends the messages of an HTTP answer as the refusal of a handshake, and passes on those
    of a WebSocket."""

    async def pass_on(message: Message) -> None:
        if message["type"].startswith("http."):
            message = {**message, "type": f"websocket.{message['type']}"}
        await send(message)

    return pass_on
