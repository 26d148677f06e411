"""What `make bench CASE=voice` reads of a server's answer, and computes of both sides' figures."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from benchmarks.voice import AT_ONCE, HEADER_BYTES, OURS, PIPER, RATE_HZ, Sample, Side, find_ratios, make_rows, speak

SAMPLES = RATE_HZ // 2


class Speaker(BaseHTTPRequestHandler):
    """Answers with a header and half a second of silence."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        good = self.path == "/synthesize"
        body = bytes(HEADER_BYTES + 2 * SAMPLES) if good else b"no such page"
        self.send_response(200 if good else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Speaker) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_the_header_is_no_audio(port: int) -> None:
    first, seconds = speak(Side(port, "/synthesize", {"text": "x"}, HEADER_BYTES, list))
    assert (first > 0, seconds) == (True, 0.5)
    with pytest.raises(RuntimeError, match="/other answered 404: b'no such page'"):
        speak(Side(port, "/other", {}, 0, list))


def test_rounds_are_compared_with_each_other() -> None:
    samples = {
        (name, count): [Sample(factor, 2 * factor, 3 * factor), Sample(10 * factor, 20 * factor, 30 * factor)]
        for name, factor in ((OURS, 0.5), (PIPER, 1.0))
        for count in AT_ONCE
    }
    assert {ratio.value for ratio in find_ratios(samples)} == {0.5}
    assert [row["side"] for row in make_rows(samples)] == [OURS, PIPER] * len(AT_ONCE)
