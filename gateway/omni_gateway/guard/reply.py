"""Answers of the guard: the headers that every answer has, and the answers that no client reads."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from starlette.datastructures import MutableHeaders
from starlette.types import Message, Send

from omni_gateway.context import Call, Gateway
from omni_gateway.errors import GatewayError, answer_error
from omni_gateway.guard.body import STALLED_S
from omni_proto.runtime.limits import PeerTable

IGNORED_HEADER: Final = "x-omnipipeline-ignored"
"""Header of an answer: the paths of the request's fields that were ignored, with commas between them."""
CUT: Final = "omnipipeline.cut"
"""ASGI extension: a function that closes the connection immediately."""
REFUSED: Final = range(400, 499)
"""Statuses of answers that wait if the client is refused often: those that say that the request is at fault."""
SWITCHED_STATUS: Final = 101
"""Status of a session that was let in."""
_MAX_NAMES: Final = 32
_MAX_CHARS: Final = 128
_UNSAFE: Final = re.compile(r"[^\w.\[\]-]", re.ASCII)


class Reply:
    """Sends an answer with the headers that every answer has."""

    def __init__(
        self, send: Send, call: Call, gateway: Gateway, unread: PeerTable[Reply], cut: Callable[[], None] | None
    ) -> None:
        """cut: closes the connection immediately."""
        self._send = send
        self._sending = unread
        self._close = cut
        self.since = 0.0
        """When the piece began to be sent that is being sent."""
        self._call = call
        self._gateway = gateway
        self._kept: list[Message] = []
        """A refusal, which is sent once all that the request held is released."""
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
            if self.status in REFUSED:
                self._kept = [message]
                return
        elif message["type"].startswith("websocket."):
            await self._send_to_session(message)
            return
        elif self._kept:
            self._kept.append(message)
            return
        elif not message.get("more_body", False):
            self.end()
        await self._pass_on(message)

    @property
    def is_refusal(self) -> bool:
        """Whether the answer refuses the request. It is kept until `send_kept`."""
        return bool(self._kept)

    async def send_kept(self) -> None:
        """Send the refusal that was kept, if there is one."""
        for message in self._kept:
            await (self._send if message["type"].startswith("websocket.") else self._pass_on)(message)

    async def _pass_on(self, message: Message) -> None:
        holder, self.since = self._call.key or self._call.address, time.monotonic()
        self._sending.add(holder, self)
        try:
            await self._send(message)  # waits while the client reads nothing
        finally:
            self._sending.remove(holder, self)

    async def _send_to_session(self, message: Message) -> None:
        """Send a message of a WebSocket. The session ends by itself if its client takes nothing for too long."""
        if message["type"] in ("websocket.accept", "websocket.http.response.start"):
            self.status = message.get("status", SWITCHED_STATUS)
            message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self._call.id.encode())]}
            self._kept = [message] if self.status in REFUSED else []
        elif self._kept:
            self._kept.append(message)
        if not self._kept:
            await self._send(message)

    @property
    def is_stalled(self) -> bool:
        """Whether the client has taken nothing for some time, and its connection can be closed."""
        return self._close is not None and time.monotonic() - self.since > STALLED_S

    def cut(self) -> None:
        """Close the connection immediately."""
        self._sending.remove(self._call.key or self._call.address, self)
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


def ignored_header(paths: Sequence[str]) -> str:
    """Returns the header's value. Characters that a header cannot hold are replaced; a long list ends with "..."."""
    shown = [_UNSAFE.sub("?", path[:_MAX_CHARS]) for path in dict.fromkeys(paths)]
    return ", ".join(shown[:_MAX_NAMES] + (["..."] if len(shown) > _MAX_NAMES else []))


async def send_json(send: Send, status: int, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
    """Send one JSON answer."""
    data = json.dumps(body, ensure_ascii=False).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    raw += [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": data})
