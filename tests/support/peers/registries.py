"""The CNCF's Distribution registry on this machine, with each kind of login, and artifacts as of `oras push`."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urljoin, urlsplit

import jwt
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from omni_cli.local.ports import pick_ports
from support.peers.certificates import Authority, Pair
from support.processes.foreign_programs import find_debian_programs
from support.processes.process import ChildProcess, listening

USER: Final = "reader"
PASSWORD: Final = "right"
_HTPASSWD: Final = f"{USER}:$2b$04$abcdefghijklmnopqrstuuFmEfrkTQnczNzw475xE2VhDrK1uwJiC\n"
"""As `htpasswd -B` writes it."""
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_EMPTY: Final = "application/vnd.oci.empty.v1+json"


@contextmanager
def serve_registry(folder: Path, auth: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yields HOST:PORT of a registry of what is in the folder. auth: a section of Distribution's configuration; without
    it, the registry lets everybody in. Several may serve one folder."""
    address = f"127.0.0.1:{pick_ports(1)[0]}"
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder)}},
        "http": {"addr": address},
        **({"auth": dict(auth)} if auth else {}),
    }
    file = folder.with_name(f"{folder.name}-{address.rpartition(':')[2]}.yml")
    file.write_text(yaml.safe_dump(config))
    program = find_debian_programs("docker-registry", "docker-registry") / "docker-registry"
    running = ChildProcess("registry", [program, "serve", file], file.with_suffix(".log"))
    running.start()
    try:
        running.wait_until(lambda: listening(int(address.rpartition(":")[2])))
        yield address
    finally:
        running.kill()


def ask_password(folder: Path) -> dict[str, Any]:
    """Returns the configuration of a registry that asks for USER and PASSWORD itself."""
    file = folder.with_suffix(".htpasswd")
    file.write_text(_HTPASSWD)
    return {"htpasswd": {"realm": "tests", "path": str(file)}}


def docker_config(host: str, password: str = PASSWORD) -> str:
    """Returns a .dockerconfigjson, as `kubectl create secret docker-registry` makes it."""
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return json.dumps({"auths": {host: {"username": USER, "password": password, "auth": auth}}})


class TokenService:
    """Gives tokens for registries to who has the password, as Docker Hub's and GitHub's services do."""

    def __init__(self) -> None:
        self.current = 0
        """Which of the registries that were configured takes the tokens."""
        self._signers: list[Pair] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self._answer(handler)

            def log_message(handler, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def configure(self, folder: Path) -> dict[str, Any]:
        """Returns the configuration of a registry that takes the tokens given while it is `current`, and no others."""
        authority = Authority("tokens")
        self._signers.append(authority.issue("signer"))
        bundle = folder.with_name(f"{folder.name}-{self._signers[-1].serial}.pem")
        bundle.write_bytes(authority.certificate)
        realm = f"http://127.0.0.1:{self._server.server_port}/token"
        return {"token": {"realm": realm, "service": "tests", "issuer": "tests", "rootcertbundle": str(bundle)}}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: http.server.BaseHTTPRequestHandler) -> None:
        wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if handler.headers.get("authorization") != wanted:
            handler.send_response(401)
            handler.send_header("content-length", "0")
            handler.end_headers()
            return
        asked = {name: values[0] for name, values in parse_qs(urlsplit(handler.path).query).items()}
        body = json.dumps({"token": _sign(self._signers[self.current], **asked)}).encode()
        handler.send_response(200)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


def _sign(signer: Pair, service: str, scope: str) -> str:
    """Returns a token of the form that Distribution's specification of token authentication defines."""
    kind, name, actions = scope.split(":")
    now = int(time.time())
    claims = {
        "iss": "tests",
        "sub": USER,
        "aud": service,
        "jti": "1",
        "iat": now,
        "nbf": now - 60,
        "exp": now + 3600,
        "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
    }
    chain = [base64.b64encode(x509.load_pem_x509_certificate(signer.certificate).public_bytes(Encoding.DER)).decode()]
    return jwt.encode(claims, signer.key, algorithm="ES256", headers={"x5c": chain})


def push(host: str, name: str, tag: str, files: Mapping[str, bytes]) -> None:
    """Pushes files as the layers of an artifact."""
    base = f"http://{host}/v2/{name}"
    layers = [
        {
            **_push_blob(base, content, "application/octet-stream"),
            "annotations": {"org.opencontainers.image.title": file},
        }
        for file, content in files.items()
    ]
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": _push_blob(base, b"{}", _EMPTY), "layers": layers}
    _send(f"{base}/manifests/{tag}", "PUT", json.dumps(manifest).encode(), _MANIFEST)


def _push_blob(base: str, content: bytes, media_type: str) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    place = urljoin(base, _send(f"{base}/blobs/uploads/", "POST", b"", "application/octet-stream"))
    _send(f"{place}{'&' if '?' in place else '?'}digest={digest}", "PUT", content, "application/octet-stream")
    return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _send(url: str, method: str, body: bytes, media_type: str) -> str:
    """Returns the address that the answer names."""
    request = urllib.request.Request(url, body, {"content-type": media_type}, method=method)  # noqa: S310 - this machine
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine
        return str(answer.headers.get("location", ""))
