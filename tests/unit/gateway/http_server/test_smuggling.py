"""Nothing is read as a request that a proxy could take for something else.

Each connection is cut into pieces at every place, and the number of answers is compared with a model.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httptools
import pytest
import uvicorn
from hypothesis import given, settings, strategies as st

from omni_gateway.http_server.connections import BoundedHttp, bounded_http
from omni_gateway.http_server.websockets import Arriving, BoundedWebSocket, is_handshake
from support.processes.polling import PATIENCE_S

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
GET = b"GET /honest HTTP/1.1\r\nhost: x\r\n\r\n"
OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAA\r\n"
"""What the JDK's HttpClient sends."""


def post(body: bytes, lines: bytes = b"", *, path: bytes = b"/post", chunked: bool = False) -> bytes:
    """Returns a request with a body, whose length is announced or which comes in two chunks."""
    if not chunked:
        return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (path, lines, len(body), body)
    pieces = (body[:7], body[7:])
    sent = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in pieces if one) + b"0\r\n\r\n"
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n%b" % (path, lines, sent)


@dataclass(frozen=True)
class Case:
    """Bytes of a client, and the answers: (status, path, bytes of the body) of each."""

    sent: bytes
    answers: Sequence[tuple[int, bytes, int]]


def refused(sent: bytes) -> Case:
    """An honest request, bytes that are no request, and a request that must not be read."""
    return Case(GET + sent + SMUGGLED, [(200, b"/honest", 0), (400, b"", 0)])


FRAMED = b"POST /p HTTP/1.1\r\nhost: x\r\n"
CHUNKED = FRAMED + b"transfer-encoding: chunked\r\n\r\n"
OFFERS = {
    "h2c": OFFER,
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\n",
    "unknown": b"Upgrade: x\r\nConnection: keep-alive, UPGRADE\r\n",
    "two lines": b"upgrade: h2c\r\nconnection: a\r\nconnection: upgrade\r\nUPGRADE: tls/1.0\r\n",
}
CASES: dict[str, Case] = {
    "honest": Case(
        GET * 2 + post(b"ab") + GET, [(200, b"/honest", 0)] * 2 + [(200, b"/post", 2), (200, b"/honest", 0)]
    ),
    "a body is a request": Case(post(SMUGGLED) + GET, [(200, b"/post", len(SMUGGLED)), (200, b"/honest", 0)]),
    "after connection: close": Case(
        b"GET /honest HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + SMUGGLED, [(200, b"/honest", 0)]
    ),
    "HTTP/1.0": Case(b"GET /honest HTTP/1.0\r\n\r\n" + SMUGGLED, [(200, b"/honest", 0)]),
    # An upgrade needs both lines.
    "upgrade alone": Case(
        b"GET /a HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\n\r\n" + GET, [(200, b"/a", 0), (200, b"/honest", 0)]
    ),
    **{
        f"{name}, {'chunked' if chunked else 'length'}, {'behind another' if before else 'first'}": Case(
            before + post(body, lines, chunked=chunked) + SMUGGLED,
            [(200, b"/honest", 0)] * bool(before) + [(200, b"/post", len(body))],
        )
        for (name, lines), (chunked, before) in itertools.product(OFFERS.items(), ((False, b""), (True, GET)))
        for body in [SMUGGLED + b"GET /half HTTP/1.1\r\nx-eat: "]
    },
    "an offer without a body": Case(
        GET + b"GET /a HTTP/1.1\r\nhost: x\r\n" + OFFER + b"\r\n" + SMUGGLED, [(200, b"/honest", 0), (200, b"/a", 0)]
    ),
    "an offer with HTTP/1.0": Case(b"GET /a HTTP/1.0\r\n" + OFFER + b"\r\n" + SMUGGLED, [(200, b"/a", 0)]),
    "CONNECT with a path": refused(b"CONNECT /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"),
    "CONNECT with a host": refused(b"CONNECT a:80 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc"),
    "CONNECT with an offer": refused(b"CONNECT a:80 HTTP/1.1\r\n" + OFFER + b"\r\n"),
    "HTTP/2 without an offer": refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/2.0 in text": refused(b"GET / HTTP/2.0\r\nhost: x\r\n\r\n"),
    "TLS": refused(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "no HTTP": refused(b"EHLO x\r\n"),
    "length and chunks": refused(FRAMED + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunks and length": refused(FRAMED + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n"),
    "two lengths": refused(FRAMED + b"content-length: 0\r\ncontent-length: 3\r\n\r\n"),
    "two equal lengths": refused(FRAMED + b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc"),
    "a list of lengths": refused(FRAMED + b"content-length: 3, 3\r\n\r\nabc"),
    "a length with a sign": refused(FRAMED + b"content-length: +3\r\n\r\nabc"),
    "a length that overflows": refused(FRAMED + b"content-length: 18446744073709551617\r\n\r\nabc"),
    "chunks twice": refused(FRAMED + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "another coding": refused(FRAMED + b"transfer-encoding: gzip\r\n\r\n"),
    "a further coding": refused(FRAMED + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    "a coding with a control character": refused(FRAMED + b"transfer-encoding: \x0bchunked\r\n\r\n0\r\n\r\n"),
    "chunks with HTTP/1.0": refused(b"POST /p HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
    "a negative chunk": refused(CHUNKED + b"-1\r\nz\r\n0\r\n\r\n"),
    "a chunk that is too long": refused(CHUNKED + b"1\r\nzz\r\n0\r\n\r\n"),
    "a chunk with a bare LF": refused(CHUNKED + b"1\nz\r\n0\r\n\r\n"),
    "a chunk whose size overflows": refused(CHUNKED + b"10000000000000001\r\nz\r\n0\r\n\r\n"),
    "a chunk with 0x": refused(CHUNKED + b"0x1\r\nz\r\n0\r\n\r\n"),
    "a folded line": refused(b"GET / HTTP/1.1\r\nx-a: b\r\n content-length: 3\r\n\r\n"),
    "a blank before the colon": refused(FRAMED + b"content-length : 3\r\n\r\nabc"),
    "a bare LF": refused(b"GET / HTTP/1.1\nhost: x\n\n"),
    "a bare CR": refused(b"GET / HTTP/1.1\r\nx-a: b\rcontent-length: 3\r\n\r\n"),
    "two hosts": refused(b"GET / HTTP/1.1\r\nhost: a\r\nHost: b\r\n\r\n"),
    **{
        f"the host {host!r}": refused(b"GET / HTTP/1.1\r\nhost: %b\r\n\r\n" % host)
        for host in (b"a b", b"a, b", b"a/b", b"a:b", b"a@b", b"[::1", b"a%zz", b"\xc3\xa9", b"a:80:80", b'"a"')
    },
    **{
        f"the host {host!r} is one": Case(b"GET /a HTTP/1.1\r\nhost: %b\r\n\r\n" % host, [(200, b"/a", 0)])
        for host in (b"", b"a.b-c_d:80", b"[::1]:8000", b"1.2.3.4", b"a,b", b"%C3%A9", b"x:")
    },
    **{
        f"the URL {url!r}": Case(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % url, [(200, path, 0)])
        for url, path in ((b"http://x", b"/"), (b"HTTP://x:80?a=b", b"/"), (b"http://x/a", b"/a"))
    },
    "a coding behind a comma": refused(FRAMED + b"transfer-encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    "a coding with a parameter": refused(FRAMED + b"transfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n"),
    "a folded coding": refused(FRAMED + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
    "an empty length": refused(FRAMED + b"content-length: \r\n\r\nabc"),
    "a chunk with a quoted line break": refused(CHUNKED + b'1;a="\r\n"\r\nz\r\n0\r\n\r\n'),
    "a chunk's extension with a bare LF": refused(CHUNKED + b"1;a\nz\r\n0\r\n\r\n"),
    "a blank behind a chunk's size": refused(CHUNKED + b"1 \r\nz\r\n0\r\n\r\n"),
    "a last chunk with a bare LF": refused(CHUNKED + b"1\r\nz\r\n0\n\n"),
    "a trailer that frames": refused(CHUNKED + b"0\r\ncontent-length: 50\r\n\r\n"),
    "a request in the trailers": refused(CHUNKED + b"0\r\n" + SMUGGLED + b"\r\n"),
    "NUL": refused(b"GET / HTTP/1.1\r\nx-a: b\0\r\n\r\n"),
    "a path that is no URL": refused(b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n"),
}


async def report(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that answers with the path and the size of the body. It refuses sessions."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = b"%b %d" % (scope["raw_path"], size)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Answers:
    """Reads the answers on a connection."""

    def __init__(self) -> None:
        self.found: list[tuple[int, bytes, int]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._body = b""

    def read(self, data: bytes) -> list[tuple[int, bytes, int]]:
        """Returns (status, path, size) of each answer. Raises HttpParserError if the data are no answers."""
        self._parser.feed_data(data)
        return self.found

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        path, _, size = self._body.partition(b" ") if status == 200 else (b"", b"", b"0")
        self.found.append((status, path, int(size)))
        self._body = b""


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[tuple[BoundedHttp, socket.socket]]:
    """Yields the server's side of a connection, and the client's."""
    socket_protocol: Any = partial(BoundedWebSocket, arriving=Arriving())
    config = uvicorn.Config(report, http=bounded_http(), ws=socket_protocol, log_config=None, lifespan="off")
    state = uvicorn.server.ServerState()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_accepted_socket(
        lambda: bounded_http()(config=config, server_state=state, app_state={}),  # type: ignore[call-arg]
        ours,
    )
    try:
        yield protocol, theirs  # type: ignore[misc]
    finally:
        transport.abort()
        theirs.close()
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def answers_to(pieces: Sequence[bytes], count: int, turns: int) -> list[tuple[int, bytes, int]]:
    """Returns the answers to pieces that arrive separately, each after `turns` turns of the event loop. After `count`
    answers, the client ends its side of the connection."""
    async with connect() as (protocol, client):
        for piece in pieces:
            if protocol.transport.is_closing():
                break  # a transport that is closed reads nothing
            # After a handshake, the transport has another protocol.
            protocol.transport.get_protocol().data_received(piece)  # type: ignore[attr-defined]
            for _ in range(turns):
                await asyncio.sleep(0)
        answers = Answers()
        while piece := await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 65536), PATIENCE_S):
            if len(answers.read(piece)) == count:
                client.shutdown(socket.SHUT_WR)
        return answers.found


@pytest.mark.parametrize("name", CASES)
async def test_splitting_the_bytes_at_any_point_gives_the_same_answers(name: str) -> None:
    """Wherever the bytes are cut into two pieces, exactly the answers of the model come, and then the connection
    ends."""
    case = CASES[name]
    for place in range(len(case.sent)):
        pieces = [case.sent[:place], case.sent[place:]] if place else [case.sent]
        turns = 20 if place % 2 else 2
        assert await answers_to(pieces, len(case.answers), turns) == list(case.answers), f"cut at {place}: {pieces}"


@settings(max_examples=150)
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(1, 400), max_size=6), st.sampled_from([0, 1, 20]))
def test_splitting_the_bytes_at_random_points_gives_the_same_answers(name: str, cuts: list[int], turns: int) -> None:
    case = CASES[name]
    places = [0, *sorted({cut for cut in cuts if cut < len(case.sent)}), len(case.sent)]
    pieces = [case.sent[first:last] for first, last in itertools.pairwise(places)]
    assert asyncio.run(answers_to(pieces, len(case.answers), turns)) == list(case.answers)


HANDSHAKE = [
    (b"host", b"x"),
    (b"connection", b"keep-alive, Upgrade"),
    (b"upgrade", b"WebSocket"),
    (b"sec-websocket-version", b"13"),
    (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ=="),
]


def head_of(lines: Sequence[tuple[bytes, bytes]], target: bytes = b"/v1/realtime?model=m") -> bytes:
    return b"GET %b HTTP/1.1\r\n%b\r\n" % (target, b"".join(b"%b: %b\r\n" % line for line in lines))


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "behind another"])
async def test_nothing_behind_a_handshake_is_a_request(before: bytes) -> None:
    """Wherever the bytes are cut: the requests before the handshake are answered, it is refused or the connection is
    cut, and nothing behind it is answered."""
    sent = before + head_of(HANDSHAKE) + SMUGGLED
    well_behaved = [(200, b"/honest", 0)] if before else []
    for place in range(0, len(sent), 3):
        pieces = [sent[:place], sent[place:]] if place else [sent]
        for turns in (0, 2, 20):
            found = await answers_to(pieces, len(well_behaved) + 1, turns)
            # A handshake behind a request that waits for its answer is read as a request without an offer.
            allowed = [(403, b"", 0)], [(200, b"/v1/realtime", 0)], []
            assert found[: len(well_behaved)] == well_behaved[: len(found)]
            assert found[len(well_behaved) :] in allowed, f"cut at {place}: {pieces}"


def without(name: bytes, *lines: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [*(line for line in HANDSHAKE if line[0] != name), *lines]


@pytest.mark.parametrize(
    ("lines", "target", "is_one"),
    [
        (HANDSHAKE, b"/v1/realtime", True),
        (HANDSHAKE, b"/v1//realtime/?model=m", True),
        (HANDSHAKE, b"/v1/chat/completions", False),
        (HANDSHAKE, b"/", False),
        ([*HANDSHAKE, (b"content-length", b"0")], b"/v1/realtime", False),
        ([*HANDSHAKE, (b"transfer-encoding", b"chunked")], b"/v1/realtime", False),
        ([*HANDSHAKE, (b"upgrade", b"h2c")], b"/v1/realtime", False),
        ([*HANDSHAKE, HANDSHAKE[-1]], b"/v1/realtime", False),
        (without(b"upgrade", (b"upgrade", b"h2c")), b"/v1/realtime", False),
        (without(b"connection", (b"connection", b"keep-alive")), b"/v1/realtime", False),
        (without(b"sec-websocket-version", (b"sec-websocket-version", b"8")), b"/v1/realtime", False),
        (without(b"sec-websocket-key", (b"sec-websocket-key", b"x")), b"/v1/realtime", False),
        (without(b"sec-websocket-key"), b"/v1/realtime", False),
    ],
)
def test_only_a_complete_handshake_leaves_http(lines: list[tuple[bytes, bytes]], target: bytes, is_one: bool) -> None:
    assert is_handshake(b"GET", target, "1.1", lines) is is_one
    assert not is_handshake(b"POST", target, "1.1", lines)
    assert not is_handshake(b"GET", target, "1.0", lines)
