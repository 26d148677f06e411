"""The guard, through which every request passes before a route sees it. It decides who may have what:

1. `normalize_path`, `Call`: what is asked for, with an id and a span
2. `_admit`: places are left, the key is valid, its limits are not used up
3. `_pass`: the body arrives in time, in one piece, and fits the memory
4. Recorder: the metrics, the span and the log line of the end
5. Refusals: the answer to a client that is refused again and again waits

An error of any step is answered in OpenAI's shape.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from omni_gateway.context import Budget, Call, Gateway, Ration, Share
from omni_gateway.errors import ClientDisconnectedError, EncodingError, GatewayError, InternalError, UnavailableError
from omni_gateway.guard.body import BodyReader
from omni_gateway.guard.client_secrets import ClientSecrets, SecretGrant
from omni_gateway.guard.keys import KeyLimiter, KeyRing
from omni_gateway.guard.record import PROBES, Recorder
from omni_gateway.guard.refusals import Refusals
from omni_gateway.guard.reply import CUT, Reply
from omni_gateway.guard.sessions import REALTIME, SessionPlaces, answer_handshake, check_origin, presented_key
from omni_gateway.rights import ApiKey
from omni_gateway.telemetry import RequestSpan
from omni_proto.runtime.limits import PeerTable

log = logging.getLogger(__name__)

PROTECTED: Final = "/v1/"
"""Beginning of the paths that need a key, if keys are configured. No other path takes a body."""
VOICE_LISTS: Final = ("/v1/audio/voices", "/v1/audio/models")
"""Paths that need no key if the setting voicesWithoutKey is true."""
POLICY_VIOLATION: Final = 1008
"""RFC 6455's code for a WebSocket that is refused."""
DISCONNECTED_STATUS: Final = 499
"""nginx's status for clients that disconnected, used in logs and metrics."""
_SLASHES: Final = re.compile("/{2,}")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


class Guard:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp, gateway: Gateway, keys: KeyRing | None, replicas: Callable[[], int]) -> None:
        """keys: None accepts every request. replicas: see KeyLimiter."""
        self._app = app
        self._gateway = gateway
        self._keys = keys
        self._client_secrets = ClientSecrets(keys, time.time)
        self._limiter = KeyLimiter(replicas)
        most = gateway.settings.max_requests
        self._refusals = Refusals()
        self._bodies = BodyReader(
            gateway.settings.max_body_bytes, gateway.settings.body_seconds, slots=most, refusals=self._refusals
        )
        self.budget = Budget(gateway.settings.max_held_bytes)
        self._running = 0
        """Requests whose body has arrived."""
        self._sessions = SessionPlaces(gateway.settings)
        self._sending: PeerTable[Reply] = PeerTable()
        """Answers of which the client takes nothing at the moment, by key or address."""
        self._recorder = Recorder(gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a connection's scope. Raises ValueError for kinds that ASGI does not define."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._open_session(scope, receive, send)
        else:
            raise ValueError(f"unknown ASGI scope {scope['type'][:64]!r}")

    async def _open_session(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a session in by the steps of a request, without a body. Each of its responses counts as a request of its
        key, see Ration. Other WebSockets are refused, because no other API uses one."""
        scope["path"], scope["method"] = normalize_path(scope["path"]), "GET"
        if scope["path"] != REALTIME:
            self._gateway.metrics.refused.labels("unsupported_endpoint").inc()
            await send({"type": "websocket.close", "code": POLICY_VIOLATION})  # not accepted: a server answers 403
            return
        headers = Headers(scope=scope)
        call = scope["omni_call"] = self._begin(scope, headers)
        reply = Reply(answer_handshake(send), call, self._gateway, self._sending, None)
        try:
            presented = presented_key(headers)
            opened = self._client_secrets.open(presented)
            if opened is None:
                opened = SecretGrant(None if self._keys is None else self._keys.authenticate(presented), {})
            key, scope["omni_session"] = opened.key, opened.session
            if key is not None:
                call.key, call.rights = key.name, key
            check_origin(headers, self._gateway.settings)
            if self._gateway.draining:
                raise UnavailableError("This gateway is shutting down; connect again.", retry_after_s=1)
            with self._sessions.enter(call.key or call.address):
                scope["omni_ration"] = Ration(lambda: Share(self.budget), lambda: self._enter_response(scope, key))
                await self._app(scope, receive, reply)
        except ClientDisconnectedError:
            self._gateway.metrics.left.inc()
        except GatewayError as error:
            await reply.refuse(error)
        finally:
            reply.status = reply.status or DISCONNECTED_STATUS
            self._end(scope, call, reply)
        await self._send_refusal(scope, call, reply)

    def _end(self, scope: Scope, call: Call, reply: Reply) -> None:
        """Release what a request held, and record it."""
        self._refusals.refund(call.holder, call.body_share.paid)
        call.body_share.release()
        call.media_share.release()
        self._recorder.record(scope, call, reply.status)

    async def _send_refusal(self, scope: Scope, call: Call, reply: Reply) -> None:
        """Send the answer of a request that was refused: later, if the client is refused often."""
        if reply.is_refusal and scope["path"] not in PROBES:
            wait_s = self._charge(call)
            if wait_s:
                self._gateway.metrics.held_refusals.inc()
                await self._refusals.hold(call.holder, wait_s)
        await reply.send_kept()

    def _charge(self, call: Call) -> float:
        return self._refusals.charge(call.holder, call.body_share.counted + call.media_share.counted)

    def _enter_response(self, scope: Scope, key: ApiKey | None) -> tuple[Callable[[float], None], Mapping[str, str]]:
        """Count a response of a session; see Ration.enter."""
        self._make_room(scope)
        limits = {} if key is None else self._limiter.enter(key)
        self._running += 1

        def leave(audio_seconds: float) -> None:
            self._running -= 1
            if key is not None:
                self._limiter.leave(key, audio_seconds)

        return leave, limits

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = normalize_path(scope["path"])
        headers = Headers(scope=scope)
        call = scope["omni_call"] = self._begin(scope, headers)
        reply = Reply(send, call, self._gateway, self._sending, scope.get("extensions", {}).get(CUT, {}).get("cut"))
        self._gateway.metrics.inflight.inc()
        try:
            reply.headers, reply.before_last = self._admit(scope, headers.get("authorization"), call)
            try:
                await self._pass(scope, headers, receive, reply, call)
            finally:
                reply.end()
        except ClientDisconnectedError:
            if not reply.started:
                self._charge(call)  # it cost as much as a refused one
            reply.cut()  # of a client that stalls, the kernel would keep what it has not read
            reply.status = DISCONNECTED_STATUS
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
            self._gateway.metrics.inflight.dec()
            self._end(scope, call, reply)
        await self._send_refusal(scope, call, reply)

    def _begin(self, scope: Scope, headers: Headers) -> Call:
        given = trace_context(headers.get("traceparent"))
        span = RequestSpan()
        if scope["path"].startswith(PROTECTED):
            span = self._gateway.tracing.begin(scope["method"], scope.get("scheme", "http"), scope["path"], given)
        return Call(
            body_share=Share(self.budget),
            media_share=Share(self.budget),
            id=request_id(headers.get("x-request-id")),
            traceparent=span.traceparent(given),
            span=span,
            address=(scope.get("client") or ("",))[0],
        )

    def _admit(
        self, scope: Scope, authorization: str | None, call: Call
    ) -> tuple[dict[str, str], Callable[[], None] | None]:
        """Find the key of a request, and count the request towards the key's limits.

        Returns headers of the answer, and a function to call once when the request has ended. Raises UnavailableError,
        AuthenticationError, RateLimitError.
        """
        self._make_room(scope)
        if self._keys is None or not scope["path"].startswith(PROTECTED) or self._is_open(scope, authorization):
            return {}, None
        key = self._keys.authenticate(authorization)
        call.key, call.rights = key.name, key
        return self._limiter.enter(key), lambda: self._limiter.leave(key, call.audio_seconds)

    def _is_open(self, scope: Scope, authorization: str | None) -> bool:
        """Returns whether a request needs no key. A key that it sends must be valid, and its limits apply."""
        is_list = scope["method"] in ("GET", "HEAD") and scope["path"] in VOICE_LISTS
        return is_list and self._gateway.settings.voices_without_key and authorization is None

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, reply: Reply, call: Call) -> None:
        """Pass a request on to the app, with its body read. Raises GatewayError, ClientDisconnectedError."""
        if scope["method"] in ("POST", "PUT", "PATCH") and scope["path"].startswith(PROTECTED):
            encoding = headers.get("content-encoding", "").strip()
            if encoding.lower() not in ("", "identity"):
                raise EncodingError(encoding)
            body = await self._bodies.read(receive, headers.get("content-length"), call.body_share, call.holder)
            self._make_room(scope)
            receive = _Replay(body, receive)
        self._running += 1
        try:
            await self._app(scope, receive, reply)
        finally:
            self._running -= 1

    def _make_room(self, scope: Scope) -> None:
        """If all places are taken, end an answer that its client does not read: of the client with the most of them,
        the one that has waited longest. Raises UnavailableError if there is none."""
        if scope["path"] in PROBES or self._running < self._gateway.settings.max_requests:
            return
        stalled = [(self._sending.held_by(peer), -one.since, one) for peer, one in self._sending if one.is_stalled]
        if stalled:
            *_, reply = max(stalled, key=lambda item: item[:2])
            reply.cut()
            return
        raise UnavailableError("The gateway is at its limit of concurrent requests; try again.", retry_after_s=1)


class _Replay:
    """Passes to the app the body that was read, and afterwards the messages of the server, such as a disconnect."""

    def __init__(self, body: bytearray, receive: Receive) -> None:
        self._body: bytearray | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        body, self._body = self._body, None
        return await self._receive() if body is None else {"type": "http.request", "body": body, "more_body": False}


def normalize_path(path: str) -> str:
    """Returns the path without doubled slashes and without one at its end, if it is a path of the API.

    Programs append /chat/completions or /models/ to a base URL that their user typed, with or without a slash.
    """
    plain = _SLASHES.sub("/", path)
    return plain.rstrip("/") if plain.startswith(PROTECTED) else path


def request_id(given: str | None) -> str:
    """Returns the client's x-request-id if it is a valid id, else a new id."""
    if given is not None and _ID.match(given):
        return given
    return f"req_{secrets.token_hex(16)}"


def trace_context(given: str | None) -> str | None:
    """Returns the client's W3C traceparent if it is valid, else None."""
    return given if given is not None and _TRACEPARENT.match(given) else None
