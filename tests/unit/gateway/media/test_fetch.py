"""Images fetched by https from a real TLS server. Size and time are limited. Redirects and cut-off answers are refused.

The server is on this host, whose address `fetch.resolve` refuses (test_media.py). So these tests replace `resolve`.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from pathlib import Path

import pytest

from omni_gateway.context import Budget, Share
from omni_gateway.errors import GatewayError, InvalidMediaError, TooLargeError, UnavailableError
from omni_gateway.media import fetch
from support.peers.certificates import Authority

HOST = "images.example.com"
URL = f"https://{HOST}/a.png?size=1"
BODY = b"\x89PNG" + b"x" * 1000
MOST = 4096


def answer(body: bytes = BODY, status: str = "200 OK", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", *(headers or (f"content-length: {len(body)}",))]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


CHUNKED = "transfer-encoding: chunked"
PIECE = b"%x\r\n%b\r\n" % (len(BODY), BODY)


class Images:
    """A TLS server of images, and the requests that it has received."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        authority = Authority("public")
        pair = authority.issue(hosts=[HOST])
        for name, content in (("ca", authority.certificate), ("crt", pair.certificate), ("key", pair.key)):
            (folder / name).write_bytes(content)
        monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca"))
        monkeypatch.setattr(fetch, "trusted", cache(fetch.trusted.__wrapped__))
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "crt", folder / "key")
        self._monkeypatch = monkeypatch
        self.asked: list[str] = []
        self.budget = Budget(1 << 20)

    async def fetch(self, given: bytes, url: str = URL, max_seconds: float = 20) -> bytes:
        """Returns the media at `url`. The server answers with the bytes `given` and then closes the connection.

        With max_seconds below 1, the server waits for 5 s between its answer and the close.
        """

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(given)
            await writer.drain()
            if max_seconds < 1:
                await asyncio.sleep(5)
            writer.close()

        async def resolve(host: str, *, param: str) -> str:
            return "127.0.0.1"

        server = await asyncio.start_server(serve, "127.0.0.1", ssl=self._tls)
        self._monkeypatch.setattr(fetch, "PORT", server.sockets[0].getsockname()[1])
        self._monkeypatch.setattr(fetch, "resolve", resolve)
        async with server:
            return await fetch.fetch_media(
                url,
                ["image/png"],
                param="image_url",
                max_bytes=MOST,
                max_seconds=max_seconds,
                hold=Share(self.budget).add,
            )


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Images:
    return Images(monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "given",
    [
        answer(),
        answer(PIECE + b"0\r\n\r\n", "200 OK", CHUNKED),
        answer(BODY, "200 OK", "connection: close"),
        answer(b"", "103 Early Hints", "link: </a.css>; rel=preload") + answer(),
    ],
    ids=["with its length", "in chunks", "until the connection ends", "after hints"],
)
async def test_an_image_is_fetched(images: Images, given: bytes) -> None:
    assert await images.fetch(given) == BODY
    assert images.asked == [
        f"GET /a.png?size=1 HTTP/1.1\r\nhost: {HOST}\r\naccept: image/png\r\n"
        "user-agent: omnipipeline-gateway\r\nconnection: close\r\n\r\n"
    ]


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        (answer(b"", "302 Found", "location: https://169.254.169.254/", "content-length: 0"), InvalidMediaError, "302"),
        (answer(b"no", "404 Not Found"), InvalidMediaError, "404"),
        (answer(b"x" * (MOST + 1)), TooLargeError, "larger"),
        (answer(b"x" * MOST * 20, "200 OK", "connection: close"), TooLargeError, "larger"),
        (answer(b"%x\r\n%b\r\n0\r\n\r\n" % (MOST + 1, b"x" * (MOST + 1)), "200 OK", CHUNKED), TooLargeError, "larger"),
        (answer(BODY[:-1], "200 OK", f"content-length: {len(BODY)}"), InvalidMediaError, "before it was complete"),
        (answer(PIECE, "200 OK", CHUNKED), InvalidMediaError, "before it was complete"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", InvalidMediaError, "cannot be fetched"),
    ],
    ids=["redirect", "missing", "too long", "endless", "long chunks", "cut", "cut in chunks", "no HTTP"],
)
async def test_unusable_responses_are_refused(
    images: Images, given: bytes, error: type[GatewayError], says: str
) -> None:
    with pytest.raises(error, match=says):
        await images.fetch(given)
    assert len(images.asked) == 1


async def test_a_stalled_response_times_out(images: Images) -> None:
    """A fetch fails after max_seconds, even if the connection is still open."""
    with pytest.raises(InvalidMediaError, match="within"):
        await images.fetch(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", max_seconds=0.5)


async def test_the_trusted_cas_are_read_once(images: Images) -> None:
    for _ in range(3):
        await images.fetch(answer())
    assert fetch.trusted.cache_info().misses == 1


async def test_a_certificate_of_another_host_is_refused(images: Images) -> None:
    with pytest.raises(InvalidMediaError, match="cannot be fetched"):
        await images.fetch(answer(), "https://other.example.com/a.png")
    assert images.asked == []


async def test_media_are_counted_before_they_are_kept(images: Images) -> None:
    await images.fetch(answer())
    assert images.budget.total - images.budget.left == len(BODY)
    images.budget.left = len(BODY) - 1
    with pytest.raises(UnavailableError, match="at once"):
        await images.fetch(answer())
