"""A model hub on this machine, with the part of the Hugging Face Hub's API that downloads use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

COMMIT = "c" * 40
TOKEN = "hf_" + "right"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "README.md": b"not needed",
    "pytorch_model.bin": b"a pickle",
}


class Hub(ThreadingHTTPServer):
    """Serves several repositories, which all have the same files. Every branch points to the same commit.

    repositories: name -> the token that it requires, None for a public repository.
    """

    daemon_threads = True

    def __init__(
        self, files: Mapping[str, bytes], repositories: Mapping[str, str | None], address: str = "127.0.0.1"
    ) -> None:
        super().__init__((address, 0), _Handler)
        self.repositories = dict(repositories)
        self.files = files
        self.commit = COMMIT
        self.url = f"http://{address}:{self.server_port}"
        self.stop_at: int | None = None
        """If set, the next transfer that is longer stops after this many bytes and closes its connection. Used once."""
        self.hangs = False
        """Whether a transfer that stops keeps its connection open until the client closes it."""
        self.stopped = threading.Event()
        self.reports_sizes = True
        """Whether answers to HEAD have a Content-Length. Some proxies remove it."""
        self.failures: list[int] = []
        """HTTP statuses of the next answers about files."""
        self.signature = ""
        """If set, weights are redirected to an address of this server whose query is this text."""
        self.sent: list[tuple[str, int]] = []
        """(file, offset of the first byte) of every transfer."""
        self.refused: list[str] = []
        """Paths that were requested with a wrong token or none."""

    def names_sent(self) -> list[str]:
        """Returns the file of every transfer, in order."""
        return [name for name, _ in self.sent]

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


def etag_of(data: bytes) -> str:
    """Returns the SHA-256 of a file, which the hub uses as ETag for files in its large-file storage (LFS)."""
    return hashlib.sha256(data).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        hub, path = self.server, self.path.split("?")[0].lstrip("/")
        listing = path.startswith("api/models/")
        repository = "/".join(path.removeprefix("api/models/").split("/")[:2])
        token = hub.repositories.get(repository)
        if repository not in hub.repositories:
            self._send(404, {"error": "Repository not found"}, body, {"X-Error-Code": "RepoNotFound"})
        elif token and self.headers.get("Authorization") != f"Bearer {token}":
            hub.refused.append(path)
            self._send(401, {"error": "Invalid credentials"}, body)
        elif listing and "/tree/" in path:
            files = [{"type": "file", "path": n, "size": len(d), "oid": etag_of(d)} for n, d in hub.files.items()]
            self._send(200, files, body)
        elif listing:
            siblings = [{"rfilename": n, "size": len(d), "blobId": etag_of(d)} for n, d in hub.files.items()]
            known = {"id": repository, "modelId": repository, "sha": self._commit(), "siblings": siblings, "tags": []}
            self._send(200, known, body)
        else:
            self._send_file(path.partition("/resolve/")[2].partition("/")[2], body)

    def _commit(self) -> str:
        """Returns the commit that the path names. Default: the commit of every branch."""
        named = re.search(r"/(?:revision|tree|resolve)/([0-9a-f]{40})\b", self.path)
        return named[1] if named else self.server.commit

    def _send_file(self, name: str, body: bool) -> None:
        hub, data = self.server, self.server.files[name]
        if hub.failures:
            self._send(hub.failures.pop(0), {"error": "busy"}, body, {"Retry-After": "0"})
            return
        if hub.signature and name.endswith(".safetensors") and not self.path.endswith(hub.signature):
            # Another host than the request's, so that our code must withhold the token. The hub's client itself
            # follows redirects to the same host.
            place = f"http://localhost:{hub.server_port}{self.path}?{hub.signature}"
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{etag_of(data)}"'}
            self._send(302, {}, body, {"Location": place, "X-Repo-Commit": self._commit(), **linked})
            return
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        if start > len(data):
            self._send(416, {"error": "Range not satisfiable"}, body, {"Content-Range": f"bytes */{len(data)}"})
            return
        self.send_response(206 if asked else 200)
        if body or hub.reports_sizes:
            self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{etag_of(data)}"')
        self.send_header("X-Repo-Commit", self._commit())
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if not body:
            return
        hub.sent.append((name, start))
        if hub.stop_at is None or hub.stop_at >= len(data) - start:
            self.wfile.write(data[start:])
            return
        stop, hub.stop_at = start + hub.stop_at, None
        self.wfile.write(data[start:stop])
        self.wfile.flush()
        hub.stopped.set()
        if hub.hangs:
            with contextlib.suppress(ConnectionResetError):
                self.rfile.read(1)
        self.close_connection = True

    def _send(self, code: int, answer: object, body: bool, headers: Mapping[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        known = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        for name, value in {**known, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)
