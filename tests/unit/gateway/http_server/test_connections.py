"""Connections without a complete header are limited in number, time and bytes. Other clients are still answered."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn

from omni_gateway.http_server.connections import BoundedHttp, ConnectionBounds, bounded_http
from support.processes.polling import PATIENCE_S, until

arrived: list[str] = []
"""Paths of the requests that have arrived."""
Bounds = ConnectionBounds
Serve = contextlib.AbstractAsyncContextManager[int]


async def report(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """An ASGI app that answers with the number of bytes and of headers that it received. /slow takes half a second, and
    /never waits until the client has left. /early reads no body. /stream does not state the length of its answer."""
    size = 0
    while scope["path"] != "/early":
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body", False):
            break
    if scope["path"] == "/never":
        arrived.append("waits")
    while scope["path"] == "/never" and message["type"] != "http.disconnect":
        message = await receive()
    arrived.append(scope["path"])
    if scope["path"] == "/slow":
        await asyncio.sleep(0.5)
    body = f"{size} bytes, {len(scope['headers'])} lines".encode()
    length = [] if scope["path"] == "/stream" else [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    if not length:
        await send({"type": "http.response.body", "body": b"streamed, ", "more_body": True})
    await send({"type": "http.response.body", "body": body})


@contextlib.asynccontextmanager
async def serve(bounds: Bounds) -> AsyncIterator[int]:
    """Yields the port of a server with these bounds."""
    config = uvicorn.Config(report, port=0, http=bounded_http(bounds), ws="none", log_config=None, lifespan="off")
    config.timeout_graceful_shutdown = 5  # seconds; a test that fails leaves its connections open
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    running = asyncio.create_task(server.serve())
    try:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await asyncio.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def connect(port: int, peer: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(peer, 0))


async def ask(port: int, peer: str = "127.0.0.1", path: str = "/") -> str:
    reader, writer = await connect(port, peer)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer.decode()


async def exchange(port: int, sent: bytes) -> list[bytes]:
    """Returns what a client gets until the connection ends: head, body, and so on."""
    reader, writer = await connect(port)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    writer.close()
    return answer.split(b"\r\n\r\n")


@pytest.mark.parametrize("line", [b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize("path", [b"/", b"/stream"])
async def test_a_client_of_http_1_0_gets_no_chunks_and_no_100(path: bytes, line: bytes) -> None:
    """It would read them as part of the body, or as the answer (RFC 9112, section 6.1; RFC 9110, section 10.1.1)."""
    async with serve(Bounds()) as port:
        head, body = await exchange(port, b"POST %b HTTP/1.0\r\n%bcontent-length: 2\r\n\r\nab" % (path, line))
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in head
    assert b"transfer-encoding" not in head
    assert body == b"streamed, " * (path == b"/stream") + b"2 bytes, %d lines" % (2 if line else 1)


@pytest.mark.parametrize(("body", "is_read"), [(b"a" * 60, True), (b"", False), (b"a" * 9, False)])
async def test_nothing_follows_an_answer_that_did_not_wait_for_an_expected_body(body: bytes, is_read: bool) -> None:
    """A proxy may not send the body of a request that is refused, and sends the next one, perhaps of another user."""
    expecting = b"POST /early HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 60\r\n\r\n"
    following = b"GET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    arrived.clear()
    async with serve(Bounds()) as port:
        reader, writer = await connect(port)
        writer.write(expecting + body)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
        assert (b"connection: close" in head) is not is_read
        if is_read:
            writer.write(following)
        await asyncio.wait_for(reader.read(), PATIENCE_S)  # to the end of the connection
        writer.close()
    assert arrived == (["/early", "/next"] if is_read else ["/early"])


HALF = b" / HTTP/1.1\r\nhost: x\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "answers"),
    [
        (b"GET" + HALF + b"\r\n", [b"200"]),
        (b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n", [b"200"]),
        (b"GET / HTTP/1.0\r\n\r\n", [b"200"]),
        (SLOW, [b"200"]),
        (SLOW + b"GET" + HALF + b"\r\n" + SLOW, [b"200"] * 3),
        (b"POST" + HALF + b"content-length: 3\r\n\r\nabc", [b"200"]),
        (b"POST" + HALF + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", [b"200"]),
        (SLOW + b"no HTTP\r\n\r\n", [b"200", b"400"]),
        (SLOW + b"GET" + HALF, [b"200", b"400"]),
        (b"GET / HT", [b"400"]),
        (b"POST" + HALF + b"content-length: 4\r\n\r\nabc", [b"400"]),
        (b"POST" + HALF + b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", [b"400"]),
        (b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nabc", [b"200"]),
        (b"", []),
    ],
)
async def test_a_client_that_sends_nothing_more_gets_its_answers(sent: bytes, answers: list[bytes]) -> None:
    """As `nc -N` does. While it waits, it may get interim answers (100)."""
    async with serve(Bounds()) as port:
        reader, writer = await connect(port)
        writer.write(sent)
        if b"/early" in sent:
            await reader.readuntil(b"lines")
            answers = []
        writer.write_eof()
        got = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()
    statuses = [one for one in re.findall(rb"HTTP/1\.1 (\d+) ", got) if one != b"100"]
    assert statuses == answers


@pytest.mark.parametrize(
    ("version", "behind"),
    [
        (b"1.1", b""),
        (b"1.0", b""),
        (b"1.1", b"GET" + HALF + b"\r\n"),
        (b"1.1", b"POST" + HALF + b"content-length: 4\r\n\r\na"),
    ],
)
async def test_a_client_that_left_is_noticed(version: bytes, behind: bytes) -> None:
    async with serve(Bounds()) as port:
        arrived.clear()
        _, writer = await connect(port)
        writer.write(b"GET /never HTTP/%b\r\nhost: x\r\n\r\n" % version)
        await until(lambda: arrived == ["waits"])
        writer.write(behind)
        await writer.drain()
        writer.close()
        await until(lambda: arrived == ["waits", "/never"])


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Returns whether the server closes the connection without an answer. Raises TimeoutError after 10 s."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    return True


class Deadline:
    """A timer that ends when the test ends it."""

    def __init__(self, seconds: float, end: Callable[[], None]) -> None:
        self.seconds = seconds
        self.end = end
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


@pytest.fixture
async def deadlines(monkeypatch: pytest.MonkeyPatch) -> list[Deadline]:
    """Replaces the event loop's timers for the deadlines of connections. Returns the deadlines, which a test ends."""
    found: list[Deadline] = []
    loop = asyncio.get_running_loop()
    later = loop.call_later

    def call_later(seconds: float, function: Any, *args: Any, **options: Any) -> Any:
        if getattr(function, "__func__", None) is not BoundedHttp.cut:
            return later(seconds, function, *args, **options)
        found.append(Deadline(seconds, function))
        return found[-1]

    monkeypatch.setattr(loop, "call_later", call_later)
    return found


async def wait_for_deadline(deadlines: list[Deadline], seconds: float) -> Deadline:
    """Returns the only deadline that is running, once it is the one of `seconds`."""
    await until(lambda: [one.seconds for one in deadlines if not one.cancelled] == [seconds])
    return deadlines[-1]


def is_open(one: socket.socket) -> bool:
    """Returns whether the server has not closed a connection yet. The connection must not block."""
    try:
        return bool(one.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


async def test_many_idle_connections_do_not_block_new_clients() -> None:
    """A client that opens 400 connections without a request keeps neither others nor itself from being served."""
    async with serve(Bounds(waiting=64, header_s=60)) as port:
        arrived.clear()
        slow = asyncio.create_task(ask(port, "127.0.0.2", "/slow"))
        await until(lambda: arrived)
        hoard = []
        for number in range(400):
            one = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
            if number % 2:
                one.sendall(b"POST / HTTP/1.1\r\nhost: x\r\nx-half: ")
            hoard.append(one)
            if number % 16 == 0:
                await asyncio.sleep(0)
        assert "0 bytes" in await ask(port)
        assert "0 bytes" in await ask(port, "127.0.0.2"), "the client with the idle connections is served, too"
        assert "0 bytes" in await slow, "a connection with a request is never closed for another"
        for one in hoard:
            one.setblocking(False)
        # The server closes connections while it serves others.
        await until(lambda: sum(map(is_open, hoard)) <= 64)
        for one in hoard:
            one.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n"], ids=["nothing", "a line", "half"]
)
async def test_a_connection_without_a_header_is_closed(sent: bytes) -> None:
    """A connection whose first header is not complete after header_s is closed."""
    async with serve(Bounds(header_s=0.3)) as port:
        reader, writer = await connect(port)
        writer.write(sent)
        assert await is_cut(reader)
        writer.close()


async def test_the_next_header_has_a_deadline_and_a_response_has_none(deadlines: list[Deadline]) -> None:
    """After an answer, the next header must begin within idle_s. Neither limit applies to an answer."""
    async with serve(Bounds(header_s=7, idle_s=70)) as port:
        reader, writer = await connect(port)
        await wait_for_deadline(deadlines, 7)
        for _ in range(2):
            arrived.clear()
            writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
            await until(lambda: arrived)
            assert all(one.cancelled for one in deadlines), "a request is in progress"
            assert b"0 bytes" in await reader.readuntil(b"lines")
            idle = await wait_for_deadline(deadlines, 70)
        idle.end()
        assert await is_cut(reader)
        writer.close()


async def test_a_later_header_has_the_same_deadline_as_the_first(deadlines: list[Deadline]) -> None:
    async with serve(Bounds(header_s=7, idle_s=70)) as port:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"0 bytes" in await reader.readuntil(b"lines")
        await wait_for_deadline(deadlines, 70)
        writer.write(b"GET / HTTP/1.1\r\nhost: a\r\n")
        (await wait_for_deadline(deadlines, 7)).end()
        assert await is_cut(reader)
        writer.close()


async def test_an_endless_header_is_refused() -> None:
    async with serve(Bounds(header_bytes=4096)) as port:
        reader, writer = await connect(port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
        for _ in range(50):
            writer.write(b"x-more: " + b"y" * 100 + b"\r\n")
            await writer.drain()
        assert (await asyncio.wait_for(reader.read(), PATIENCE_S)).startswith(b"HTTP/1.1 431 ")
        writer.close()


@pytest.mark.parametrize(
    "before",
    [
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nz\r\n0\r\nx-more: ",
        b"GET /never HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nx-more: ",
    ],
    ids=["a trailer", "the next header during an answer"],
)
async def test_bytes_after_a_request_are_limited(before: bytes) -> None:
    """Too many bytes after a request's header close the connection without status 431, which the client would take for
    a part of the answer."""
    async with serve(Bounds(header_bytes=4096)) as port:
        reader, writer = await connect(port)
        writer.write(before)
        for _ in range(50):
            writer.write(b"y" * 200)
            await asyncio.sleep(0)  # the server reads
        assert await is_cut(reader)
        writer.close()


async def test_an_offer_of_another_protocol_is_ignored() -> None:
    """The JDK's HttpClient offers h2c with each request over http. Its bodies still arrive, and the connection ends
    after the answer."""
    offer = b"connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
    async with serve(Bounds()) as port:
        for body in (b"7 bytes", b"", b"\r\nupgrade: 13"):
            reader, writer = await connect(port)
            writer.write(b"POST / HTTP/1.1\r\nhost: a\r\n" + offer + b"content-length: %d\r\n\r\n" % len(body) + body)
            answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
            assert answer.endswith(b"%d bytes, 4 lines" % len(body))
            assert b"\r\nconnection: close\r\n" in answer
            writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 300 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\na: " + b"b" * 5000 + b"\r\n\r\n", 431),
        (b"GET /" + b"b" * 5000 + b" HTTP/1.1\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: a\r\n\r\n" * 100, 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_000, 400),
        (b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n" + b"a:\r\n" * 10_000 + b"\r\n", 400),
    ],
    ids=[
        "lines",
        "a line in one piece",
        "a path in one piece",
        "requests that wait",
        "no host",
        "small chunks",
        "trailers",
    ],
)
async def test_header_lines_and_pieces_are_limited(sent: bytes, status: int) -> None:
    async with serve(Bounds(header_bytes=4096)) as port:
        reader, writer = await connect(port)
        writer.write(sent)
        answers = await asyncio.wait_for(reader.read(), PATIENCE_S)
        assert b"HTTP/1.1 %d " % status in answers
        assert answers.count(b"HTTP/1.1 200 ") == (9 if b"wait on this" in answers else 0)
        writer.close()


async def test_a_body_may_exceed_the_header_limit_and_its_trailers_are_dropped() -> None:
    """header_bytes does not limit the body. Trailers of a chunked body are dropped."""
    async with serve(Bounds(header_bytes=4096)) as port:
        reader, writer = await connect(port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write((b"2000\r\n" + b"z" * 0x2000 + b"\r\n") * 3 + b"0\r\n" + b"x-more: y\r\n" * 40 + b"\r\n")
        assert b"24576 bytes, 2 lines" in await reader.readuntil(b"lines")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
        for _ in range(3):
            assert b"0 bytes, 1 lines" in await reader.readuntil(b"lines")
        writer.close()
