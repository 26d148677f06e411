"""Streamed answers: SSE comments fill silences, and an answer ends when its client disconnects or stops reading."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from omni_gateway.api.live import COMMENT, ClientDisconnectedError, LiveResponse, Template, event

Message = dict[str, Any]


class Client:
    """A stand-in for the server's side of a connection. After `takes` chunks the client reads no more."""

    def __init__(self, *, takes: int = 1000) -> None:
        self.got: list[bytes] = []
        self.gone = asyncio.Event()
        self.got_comments = asyncio.Event()
        """Set with the second comment."""
        self._takes = takes

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            if len(self.got) >= self._takes:
                await asyncio.Event().wait()
            self.got.append(message["body"])
            if self.got.count(COMMENT) == 2:
                self.got_comments.set()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}


class Source:
    """Yields chunks, with a silence after the first one, and records whether it was closed."""

    def __init__(self, *, silence_until: asyncio.Event | None = None, endless: bool = False) -> None:
        self.closed = False
        self._silence_until = silence_until
        self._endless = endless

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            if self._silence_until is not None:
                await self._silence_until.wait()
            yield b"second"
            while self._endless:
                await asyncio.sleep(0.001)
                yield b"more"
        finally:
            self.closed = True


def respond(source: Source, *, send_s: float = 30.0, comment_s: float | None = None) -> LiveResponse:
    return LiveResponse(source.chunks(), media_type="text/event-stream", send_s=send_s, comment_s=comment_s)


async def test_everything_is_sent_in_order() -> None:
    client, source = Client(), Source()
    await respond(source)({}, client.receive, client.send)
    assert client.got == [b"first", b"second", b""]
    assert source.closed


async def test_silence_is_filled_with_comments() -> None:
    client = Client()
    source = Source(silence_until=client.got_comments)
    await respond(source, comment_s=0.05)({}, client.receive, client.send)
    assert client.got[:3] == [b"first", COMMENT, COMMENT]
    assert [chunk for chunk in client.got if chunk != COMMENT] == [b"first", b"second", b""]


async def test_a_stalled_reader_is_disconnected() -> None:
    """If a chunk takes longer than send_s to send, the client counts as disconnected."""
    client, source = Client(takes=3), Source(endless=True)
    with pytest.raises(ClientDisconnectedError):
        await respond(source, send_s=0.05)({}, client.receive, client.send)
    assert len(client.got) == 3
    assert source.closed


@pytest.mark.parametrize("endless", [True, False])
async def test_a_disconnect_releases_everything(endless: bool) -> None:
    client, source = Client(), Source(silence_until=None if endless else asyncio.Event(), endless=endless)
    tasks = asyncio.all_tasks()
    asyncio.get_running_loop().call_later(0.05, client.gone.set)
    with pytest.raises(ClientDisconnectedError):
        await respond(source, comment_s=600)({}, client.receive, client.send)
    assert source.closed
    assert asyncio.all_tasks() == tasks


async def test_errors_of_the_source_are_raised() -> None:
    async def fail() -> AsyncGenerator[bytes, None]:
        yield b"first"
        raise ValueError("the source")

    client = Client()
    with pytest.raises(ValueError, match="the source"):
        await LiveResponse(fail(), media_type="audio/wav", send_s=5)({}, client.receive, client.send)
    assert client.got == [b"first"]


@pytest.mark.parametrize(
    "text", ["", "word ", 'a "quote", a \\ and a\nline', "\u00e9\u4e16\U0001f600", "\x00\x1f", "here"]
)
def test_template_events_equal_events_encoded_as_a_whole(text: str) -> None:
    """A Template encodes an event to the same bytes as event() does."""

    def make(text: str) -> dict[str, Any]:
        return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": text}}], "usage": None}

    assert Template(make).event(text) == event(make(text))


async def test_comments_do_not_save_a_stalled_reader() -> None:
    """SSE comments do not keep the answer open for a client that has stopped reading."""
    client, source = Client(takes=2), Source(endless=True)
    with pytest.raises(ClientDisconnectedError):
        await respond(source, send_s=0.3, comment_s=0.02)({}, client.receive, client.send)
    assert source.closed
