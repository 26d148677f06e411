"""Sends streamed answers, and cancels the work for an answer when the client disconnects.

Requests for pipelines that sleep wait: a stream begins with comments, any other answer waits silently.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from omni_gateway.context import Call, Gateway
from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.errors import ClientDisconnectedError, GatewayError, answer_error


async def wait_awake(gateway: Gateway, call: Call, pipeline: ServedPipeline, receive: Receive) -> None:
    """Wait until the pipeline serves. Raises GatewayError, and ClientDisconnectedError if the client leaves."""
    if pipeline.is_away:
        await run_while_connected(receive, gateway.holds.wait(pipeline, call.holder))


def respond_when_awake(
    gateway: Gateway, call: Call, pipeline: ServedPipeline, answer: Callable[[], Awaitable[LiveResponse]]
) -> LiveResponse:
    """Returns a stream that begins at once, with comments, and continues with the answer once the pipeline serves.

    An error is an event, because the status was sent. Raises GatewayError if the request's values do not fit.
    """
    # The route frees the body when it returns, but `answer` keeps the values.
    call.media_share.add(call.body_share.held)
    return LiveResponse(
        _stream(gateway, call, pipeline, answer),
        media_type=EVENT_STREAM,
        send_s=gateway.settings.send_seconds,
        comment_s=gateway.settings.keep_alive_seconds,
    )


async def _stream(
    gateway: Gateway, call: Call, pipeline: ServedPipeline, answer: Callable[[], Awaitable[LiveResponse]]
) -> AsyncGenerator[bytes, None]:
    yield COMMENT
    try:
        await gateway.holds.wait(pipeline, call.holder)
        response = await answer()
    except GatewayError as error:
        call.error = error.specific_code or error.code or ""
        yield error_event(error)
        return
    async with aclosing(response.relay()) as chunks:
        async for chunk in chunks:
            yield chunk


EVENT_STREAM: Final = "text/event-stream; charset=utf-8"
DONE: Final = b"data: [DONE]\n\n"
COMMENT: Final = b": keep-alive\n\n"
_PLACEHOLDER: Final = "\ue000placeholder\ue000"
"""Stands in a template for the string by which events differ. No other field contains it: they are ids and names, in
ASCII."""

encode_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Encodes compact JSON. json.dumps with these options would create a new encoder in each call."""

Result = TypeVar("Result")


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """Returns a server-sent event with the value as JSON."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {encode_json(value)}\n\n".encode()


class DeferredResponse(Response):
    """Does the work of an answer after the route has returned. By then, everything that the route and the web framework
    held, such as the parsed body, has been freed."""

    def __init__(self, work: Awaitable[Response]) -> None:
        """work: returns the response to send."""
        super().__init__()
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ClientDisconnectedError, and any error of the work."""
        response = await run_while_connected(receive, self._work)
        await response(scope, receive, send)


class Template:
    """Makes events that differ in one string. Everything else is encoded only once, because a stream has an event per
    token: encoding a chunk of a chat as a whole takes 17 times as long.

        make("x") -> {"choices": [{"delta": {"content": "x"}}], ...}
        data: {"choices":[{"delta":{"content":  | "x" |  }}],...}      encoded once | per event | encoded once
    """

    def __init__(self, make: Callable[[str], Mapping[str, Any]]) -> None:
        """make: returns the value of the event that contains the given string."""
        encoded = event(make(_PLACEHOLDER))
        self._before, self._after = encoded.split(encode_json(_PLACEHOLDER).encode())

    def event(self, text: str) -> bytes:
        """Returns the event that contains the given string."""
        return b"%b%b%b" % (self._before, encode_json(text).encode(), self._after)


def error_event(error: GatewayError) -> bytes:
    """Returns the last event of a stream that failed after it had started."""
    return event(answer_error(error).body)


class LiveResponse(Response):
    """Sends chunks as they arrive. Closes their generator at the end, or when the client disconnects or stalls."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        send_s: float,
        comment_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        on_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """send_s: time within which one chunk must be sent, in seconds. comment_s: seconds of silence after which a
        comment is sent; None: no comments. on_end: called at the end, even if no chunk was read."""
        self.status_code = 200
        self.background = None
        self.media_type = media_type
        self._chunks = chunks
        self._send_s = send_s
        self._comment_s = comment_s
        self._on_end = on_end
        self._sent_at = 0.0
        self._sending_since: float | None = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ClientDisconnectedError, and any error of the generator."""
        tasks = [asyncio.ensure_future(self._pump(send)), asyncio.ensure_future(_wait_disconnect(receive))]
        tasks.append(asyncio.ensure_future(self._watch()))
        if self._comment_s is not None:
            tasks.append(asyncio.ensure_future(self._comment(send, self._comment_s)))
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(tasks)
            await self._chunks.aclose()
            if self._on_end is not None:
                await self._on_end()
        for task in done:
            task.result()
        if tasks[0] not in done:
            raise ClientDisconnectedError

    async def relay(self) -> AsyncGenerator[bytes, None]:
        """Yields the chunks, for another response to send. Closes their generator at the end."""
        try:
            async for chunk in self._chunks:
                yield chunk
        finally:
            await self._chunks.aclose()
            if self._on_end is not None:
                await self._on_end()

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        self._sent_at = asyncio.get_running_loop().time()
        async for chunk in self._chunks:
            await self._send(send, chunk, more=True)
        await self._send(send, b"", more=False)

    async def _send(self, send: Send, chunk: bytes, *, more: bool) -> None:
        # Runs once per token, so it uses no timer and no lock. `_watch` enforces the time limit.
        loop = asyncio.get_running_loop()
        self._sending_since = loop.time()
        try:
            await send({"type": "http.response.body", "body": chunk, "more_body": more})
        except OSError as error:
            raise ClientDisconnectedError from error
        self._sending_since = None
        self._sent_at = loop.time()

    async def _watch(self) -> None:
        """Raises ClientDisconnectedError when a chunk has taken too long to be sent."""
        loop = asyncio.get_running_loop()
        while True:
            since = self._sending_since
            wait_s = self._send_s if since is None else since + self._send_s - loop.time()
            if wait_s <= 0:
                raise ClientDisconnectedError
            await asyncio.sleep(wait_s)

    async def _comment(self, send: Send, every_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            wait_s = self._sent_at + every_s - loop.time() if self._sent_at else every_s
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            elif self._sending_since is None:
                await self._send(send, COMMENT, more=True)
            else:
                # The client has not read the last chunk yet, so it needs no comment.
                await asyncio.sleep(every_s)


async def run_while_connected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Returns the result of work, or raises its error.

    If the client disconnects, cancels work and raises ClientDisconnectedError. The request's body must have been read
    before.
    """
    task = asyncio.ensure_future(work)
    disconnected = asyncio.ensure_future(_wait_disconnect(receive))
    try:
        await asyncio.wait((task, disconnected), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnectedError
    finally:
        await _end([task, disconnected])


async def _wait_disconnect(receive: Callable[[], Awaitable[Any]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):  # the callers read the results that matter
            await task
