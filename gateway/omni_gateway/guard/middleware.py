"""The guard wraps every request: limits, request id, log line, metrics, and errors in OpenAI's shape."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_gateway.api.context import Call, Gateway
from omni_gateway.api.ignored import IGNORED_HEADER, ignored_header
from omni_gateway.api.live import ClientLeftError
from omni_gateway.errors import EncodingError, GatewayError, InternalError, UnavailableError, answer_error
from omni_gateway.guard.body import STALLED_S, BodyGoneError, BodyReader
from omni_gateway.guard.budget import Budget, Share
from omni_gateway.guard.keys import KeyRing
from omni_gateway.guard.limits import KeyLimiter
from omni_gateway.guard.refused_keys import RefusedKeys
from omni_gateway.guard.request_ids import request_id, trace_context
from omni_gateway.telemetry.tracing import RequestSpan
from omni_proto.limits.peer_table import PeerTable
from omni_proto.process.otlp import exemplar_of

log = logging.getLogger(__name__)

PROTECTED: Final = "/v1/"
"""Beginning of the paths that need a key, if keys are configured. No other path takes a body."""
_SLASHES: Final = re.compile("/{2,}")
VOICE_LISTS: Final = ("/v1/audio/voices", "/v1/audio/models")
"""Paths that need no key if the setting voicesWithoutKey is true."""
PROBES: Final = ("/health", "/ready", "/metrics")
"""Paths that are answered even if there are too many requests. Otherwise kubelet would restart a busy gateway."""
BAD_STATUS: Final = 400
WRONG_KEY_STATUS: Final = 401
CUT: Final = "omnipipeline.cut"
"""ASGI extension: a function that closes the connection immediately."""
POLICY_VIOLATION: Final = 1008
"""RFC 6455's code for a WebSocket that is refused."""
LEFT_STATUS: Final = 499
"""nginx's status for clients that disconnected, used in logs and metrics."""


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, gateway: Gateway, keys: KeyRing | None, replicas: Callable[[], int]) -> None:
        """keys: None accepts every request. replicas: see KeyLimiter."""
        self._app = app
        self._gateway = gateway
        self._keys = keys
        self._limiter = KeyLimiter(replicas)
        most = gateway.settings.max_requests
        self._bodies = BodyReader(gateway.settings.max_body_bytes, gateway.settings.body_seconds, slots=most)
        self.budget = Budget(gateway.settings.max_held_bytes)
        self._running = 0
        """Requests whose body has arrived."""
        self._unread: PeerTable[_Reply] = PeerTable()
        """Answers of which the client takes nothing at the moment, by key or address."""
        self._refused_keys = RefusedKeys()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._refuse_scope(scope["type"], send)
            return
        scope["path"] = plain_path(scope["path"])
        headers = Headers(scope=scope)
        given = trace_context(headers.get("traceparent"))
        span = RequestSpan()
        if scope["path"].startswith(PROTECTED):
            span = self._gateway.tracing.begin(scope["method"], scope.get("scheme", "http"), scope["path"], given)
        call = scope["omni_call"] = Call(
            body_share=Share(self.budget),
            media_share=Share(self.budget),
            id=request_id(headers.get("x-request-id")),
            traceparent=span.traceparent(given),
            span=span,
            address=(scope.get("client") or ("",))[0],
        )
        reply = _Reply(send, call, self._gateway, self._unread, scope.get("extensions", {}).get(CUT, {}).get("cut"))
        self._gateway.metrics.inflight.inc()
        try:
            await self._serve(scope, headers, receive, reply)
        except (BodyGoneError, ClientLeftError):
            reply.status = LEFT_STATUS
            self._gateway.metrics.left.inc()
        except GatewayError as error:
            await reply.refuse(error)
        except Exception as error:
            log.exception("request failed", extra={"request_id": call.id})
            if reply.started:
                raise
            await reply.refuse(InternalError("The gateway failed; its log has the reason, with this request's id."))
            del error
        finally:
            call.body_share.release()
            call.media_share.release()
            self._gateway.metrics.inflight.dec()
            self._record(scope, call, reply)

    async def _refuse_scope(self, kind: str, send: Send) -> None:
        """Refuse whatever the guard does not check. Raises ValueError for kinds that ASGI does not define."""
        if kind != "websocket":
            raise ValueError(f"unknown ASGI scope {kind[:64]!r}")
        self._gateway.metrics.refused.labels("unsupported_endpoint").inc()
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # before it is accepted: a server answers 403

    async def _serve(self, scope: Scope, headers: Headers, receive: Receive, reply: _Reply) -> None:
        self._make_room(scope)
        given = headers.get("authorization")
        if self._keys is None or not scope["path"].startswith(PROTECTED) or self._is_open(scope, given):
            await self._pass(scope, headers, receive, reply)
            return
        key = self._keys.authenticate(given)
        call: Call = scope["omni_call"]
        call.key, call.rights = key.name, key
        reply.headers = self._limiter.enter(key)
        reply.before_last = lambda: self._limiter.leave(key, call.audio_seconds)
        try:
            await self._pass(scope, headers, receive, reply)
        finally:
            reply.end()

    def _is_open(self, scope: Scope, authorization: str | None) -> bool:
        """Returns whether a request needs no key. A key that it sends must be valid, and its limits apply."""
        is_list = scope["method"] in ("GET", "HEAD") and scope["path"] in VOICE_LISTS
        return is_list and self._gateway.settings.voices_without_key and authorization is None

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, reply: _Reply) -> None:
        if scope["method"] not in ("POST", "PUT", "PATCH") or not scope["path"].startswith(PROTECTED):
            await self._run(scope, receive, reply)
            return
        call: Call = scope["omni_call"]
        encoding = headers.get("content-encoding", "").strip()
        if encoding.lower() not in ("", "identity"):
            raise EncodingError(encoding)
        holder = call.key or call.address
        body = await self._bodies.read(receive, headers.get("content-length"), call.body_share, holder)
        self._make_room(scope)
        await self._run(scope, _Replay(body, receive), reply)

    def _make_room(self, scope: Scope) -> None:
        """If all places are taken, end an answer that its client does not read: of the client with the most of them,
        the one that has waited longest. Raises UnavailableError if there is none."""
        if scope["path"] in PROBES or self._running < self._gateway.settings.max_requests:
            return
        stalled = [(self._unread.held_by(peer), -one.since, one) for peer, one in self._unread if one.is_stalled]
        if stalled:
            *_, reply = max(stalled, key=lambda item: item[:2])
            reply.cut()
            return
        raise UnavailableError("The gateway is at its limit of concurrent requests; try again.", retry_after_s=1)

    async def _run(self, scope: Scope, receive: Receive, reply: _Reply) -> None:
        self._running += 1
        try:
            await self._app(scope, receive, reply)
        finally:
            self._running -= 1

    def _record(self, scope: Scope, call: Call, reply: _Reply) -> None:
        found = find_route(scope)
        route = found or "other"
        took = time.monotonic() - call.started
        self._gateway.metrics.requests.labels(route, str(reply.status)).inc()
        self._gateway.metrics.seconds.labels(route).observe(took, exemplar_of(call.traceparent))
        facts = {"omnipipeline.request_id": call.id, "omnipipeline.model": call.model}
        broken = call.error if reply.status < BAD_STATUS else ""
        if broken:
            self._gateway.metrics.broken.labels(broken).inc()
        call.span.end(found, reply.status, facts, error=broken)
        if route in PROBES:
            return
        if reply.status == WRONG_KEY_STATUS and not self._refused_keys.note():
            return
        said = {"request_id": call.id, "route": route, "status": reply.status, "seconds": round(took, 4)}
        said |= {"model": call.model, "key": call.key}
        log.info("request", extra={**said, "error": broken} if broken else said)


def find_route(scope: Scope) -> str:
    """Returns the path of a request's route, such as /v1/models/{model:path}; empty if it has none.

    Also for a request that the guard refused before the app looked for its route.
    """
    if "route" in scope or "app" not in scope:
        return str(getattr(scope.get("route"), "path", ""))
    for wanted in (Match.FULL, Match.PARTIAL):  # PARTIAL: the path of a route, with another method
        for route in scope["app"].routes:
            if route.matches(scope)[0] is wanted:
                return str(getattr(route, "path", ""))
    return ""


class _Replay:
    """Passes to the app the body that was read, and afterwards the messages of the server, such as a disconnect."""

    def __init__(self, body: bytearray, receive: Receive) -> None:
        self._body: bytearray | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        return await self._receive() if body is None else {"type": "http.request", "body": body, "more_body": False}


class _Reply:
    """Sends an answer with the headers that every answer has."""

    def __init__(
        self, send: Send, call: Call, gateway: Gateway, unread: PeerTable[_Reply], cut: Callable[[], None] | None
    ) -> None:
        """cut: closes the connection immediately."""
        self._send = send
        self._unread = unread
        self._close = cut
        self.since = 0.0
        """When the piece began to be sent that is being sent."""
        self._call = call
        self._gateway = gateway
        self.status = 0
        self.headers: dict[str, str] = {}
        """Further headers of the answer."""
        self.before_last: Callable[[], None] | None = None
        """Called once, before the end of the answer is sent. So the client's next request does not count as concurrent
        with this one, even if it comes as soon as the answer has ended."""

    @property
    def started(self) -> bool:
        """Whether status and headers were sent."""
        return self.status != 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers["x-request-id"] = self._call.id
            for name, value in self.headers.items():
                headers[name] = value
            if self._call.ignored:
                headers[IGNORED_HEADER] = ignored_header(self._call.ignored)
            if self._gateway.draining:
                headers["connection"] = "close"
            message = {**message, "headers": headers.raw}
        elif not message.get("more_body", False):
            self.end()
        holder, self.since = self._call.key or self._call.address, time.monotonic()
        self._unread.add(holder, self)
        try:
            await self._send(message)  # waits while the client reads nothing
        finally:
            self._unread.remove(holder, self)

    @property
    def is_stalled(self) -> bool:
        """Whether the client has taken nothing for some time, and its connection can be closed."""
        return self._close is not None and time.monotonic() - self.since > STALLED_S

    def cut(self) -> None:
        """Close the connection immediately."""
        self._unread.remove(self._call.key or self._call.address, self)
        if self._close is not None:
            self._close()

    def end(self) -> None:
        """Note that the answer ends now, complete or not."""
        ending, self.before_last = self.before_last, None
        if ending is not None:
            ending()

    async def refuse(self, error: GatewayError) -> None:
        """Send an error as the answer."""
        answer = answer_error(error)
        self._gateway.metrics.refused.labels(answer.body["error"]["code"]).inc()
        await send_json(self, answer.status, answer.body, answer.headers)


def plain_path(path: str) -> str:
    """Returns the path without doubled slashes and without one at its end, if it is a path of the API.

    Programs append /chat/completions or /models/ to a base URL that their user typed, with or without a slash.
    """
    plain = _SLASHES.sub("/", path)
    return plain.rstrip("/") if plain.startswith(PROTECTED) else path


async def send_json(send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Send one JSON answer."""
    data = json.dumps(body, ensure_ascii=False).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})
