"""A model hub on this machine: the part of the hub's API that downloads use, for pods to reach.

org/open needs no token, org/gated needs TOKEN. `break_next` cuts the next longer transfer after that many bytes, once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

TOKEN = "hf_" + "e2e"
COMMIT = "c" * 40


class Hub(ThreadingHTTPServer):
    """Serves the files of one folder as both repositories, at one commit that `main` means."""

    daemon_threads = True

    def __init__(self, address: str, folder: Path) -> None:
        super().__init__((address, 0), _Handler)
        self.folder = folder
        self.url = f"http://{address}:{self.server_port}"
        self.break_next: int | None = None
        self.broken: list[str] = []
        self.ranges: list[tuple[str, int]] = []
        """(file, first byte) of every transfer that did not begin at 0."""
        self.refused: list[str] = []
        self.served: list[str] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


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
        path = self.path.split("?")[0].lstrip("/")
        listing = path.startswith("api/models/")
        repository = "/".join(path.removeprefix("api/models/").split("/")[:2])
        if repository not in ("org/open", "org/gated"):
            self._send(404, {"error": "Repository not found"}, body, {"X-Error-Code": "RepoNotFound"})
        elif repository == "org/gated" and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.server.refused.append(path)
            self._send(401, {"error": "Invalid credentials"}, body)
        elif listing and "/tree/" in path:
            self._send(200, [{"type": "file", **described} for described in self._files("path", "oid")], body)
        elif listing:
            siblings = self._files("rfilename", "blobId")
            known = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []}
            self._send(200, known, body)
        else:
            self._send_file(self.server.folder / path.rsplit("/", 1)[-1], body)

    def _files(self, name: str, identity: str) -> list[dict[str, Any]]:
        files = sorted(self.server.folder.iterdir())
        return [{name: file.name, "size": file.stat().st_size, identity: _etag(file)} for file in files]

    def _send_file(self, file: Path, body: bool) -> None:
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").partition("-")[0]) if asked else 0
        size = file.stat().st_size
        if start:
            self.server.ranges.append((file.name, start))
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(size - start))
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        if not body:
            return
        self.server.served.append(file.name)
        content = file.read_bytes()[start:]
        stop = self.server.break_next
        if stop is not None and stop < len(content):
            self.server.break_next = None
            self.server.broken.append(file.name)
            self.wfile.write(content[:stop])
            self.close_connection = True
        else:
            self.wfile.write(content)

    def _send(self, code: int, answer: object, body: bool, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(code)
        known = {"Content-Type": "application/json", "Content-Length": str(len(data))}
        for name, value in {**known, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


def _etag(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
