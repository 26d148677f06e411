"""A forwarded port: what a client sends reaches the pod's connection, and back; a failure is said."""

from __future__ import annotations

import http.client
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from omni_cli.cluster.access import ClusterError
from omni_cli.cluster.forward import listen
from support.processes.polling import PATIENCE_S

BODY = b"x" * (1 << 22)


class Echo(BaseHTTPRequestHandler):
    """Answers with what it got."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_bytes_pass_both_ways_on_several_connections(port: int) -> None:
    with listen(lambda: socket.create_connection(("127.0.0.1", port))) as (address, said):
        for _ in range(3):
            with urllib.request.urlopen(f"http://{address}/", data=BODY, timeout=PATIENCE_S) as response:
                assert response.read() == BODY
        assert said() == ""
    host, _, number = address.partition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(number)), timeout=PATIENCE_S)


def test_a_connection_that_fails_is_closed_and_said() -> None:
    def connect() -> socket.socket:
        raise ClusterError("no ready entry pod")

    with listen(connect) as (address, said):
        with pytest.raises((urllib.error.URLError, ConnectionError, http.client.RemoteDisconnected)):
            urllib.request.urlopen(f"http://{address}/", data=b"", timeout=PATIENCE_S)
        assert said() == "no ready entry pod"
