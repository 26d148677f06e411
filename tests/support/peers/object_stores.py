"""Object stores of others, on this machine: moto (S3), Azurite, and fake-gcs-server.

The first two check signatures. The third lets everybody in, so a proxy in front of it checks the tokens that the client
signs with the key of its service account, and answers as Google does.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import http.server
import json
import shutil
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import jwt
import obstore
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from obstore.store import AzureStore, S3Store

from omni_cli.local.ports import pick_ports
from support.processes.foreign_programs import install_environment, install_package
from support.processes.process import ChildProcess, listening

BUCKET: Final = "models"
_FRAMING: Final = ("content-length", "transfer-encoding", "connection")
_AZURE_ACCOUNT: Final = "devstoreaccount1"
_AZURE_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own, which its documentation publishes."""


@dataclass(frozen=True)
class ObjectStore:
    """A running store with an empty bucket."""

    scheme: str
    port: int
    right: str
    """What tokenSecretRef holds."""
    wrong: tuple[str, ...]
    """Credentials that it refuses: with another key, and those that have expired, where they can."""
    environment: Callable[[int], Mapping[str, str]]
    """The pod's variables, for the port at which the store is reached."""
    put: Callable[[str, bytes], object]
    """Writes an object: its key and content."""
    close: Callable[[], None] = lambda: None


@contextmanager
def serve(name: str, folder: Path) -> Iterator[ObjectStore]:
    """Runs the store of a scheme. Raises RuntimeError if it cannot be installed."""
    (port,) = pick_ports(1)
    running = ChildProcess(name, _COMMANDS[name](port, folder), folder / f"{name}.log")
    running.start()
    try:
        running.wait_until(lambda: listening(port))
        store = _SETUPS[name](port)
        try:
            yield store
        finally:
            store.close()
    finally:
        running.kill()


def s3_environment(port: int) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}


def azure_environment(port: int) -> dict[str, str]:
    return {
        "AZURE_STORAGE_ACCOUNT_NAME": _AZURE_ACCOUNT,
        "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{_AZURE_ACCOUNT}",
        "AZURE_ALLOW_HTTP": "true",
    }


def gcs_environment(port: int) -> dict[str, str]:
    return {"GOOGLE_BASE_URL": f"http://127.0.0.1:{port}", "GOOGLE_ALLOW_HTTP": "true"}


def _fake_gcs(port: int, folder: Path) -> list[str]:
    (program,) = install_environment("fake-gcs-server").rglob("fake-gcs-server-linux-*")
    program.chmod(0o755)
    place = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    return [str(program), *place, "-public-host", f"127.0.0.1:{port}"]


def _moto(port: int, folder: Path) -> list[str]:
    python = install_environment("moto") / "bin" / "python"
    return [str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]


def _azurite(port: int, folder: Path) -> list[str]:
    program = install_package("azurite") / "azurite" / "dist" / "src" / "blob" / "main.js"
    place = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    return [str(shutil.which("node")), str(program), *place, "--silent", "--skipApiVersionCheck", "--disableTelemetry"]


def _set_up_s3(port: int) -> ObjectStore:
    url = f"http://127.0.0.1:{port}"
    _ask(f"{url}/{BUCKET}", "PUT")
    # obstore writes no such key. Nobody may ask unsigned afterwards.
    _ask(f"{url}/{BUCKET}/climbs/..%2F..%2Fevil.json", "PUT", b"{}")
    _ask(f"{url}/{BUCKET}/climbs/config.json", "PUT", b"{}")
    allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    _iam(url, Action="CreateUser", UserName="reader")
    _iam(url, Action="PutUserPolicy", UserName="reader", PolicyName="s3", PolicyDocument=json.dumps(allow))
    key = _iam(url, Action="CreateAccessKey", UserName="reader")
    keys = {name: key.partition(f"<{name}>")[2].partition("<")[0] for name in ("AccessKeyId", "SecretAccessKey")}
    _ask(f"{url}/moto-api/reset-auth", "POST", b"0", {"content-type": "text/plain"})

    def file_of(secret: str) -> str:
        return f"[default]\naws_access_key_id = {keys['AccessKeyId']}\naws_secret_access_key = {secret}\n"

    config: Any = {"access_key_id": keys["AccessKeyId"], "secret_access_key": keys["SecretAccessKey"]}
    client = S3Store(BUCKET, endpoint=url, region="us-east-1", config=config, client_options={"allow_http": True})
    return ObjectStore(
        "s3", port, file_of(keys["SecretAccessKey"]), (file_of("w" * 40),), s3_environment, partial(obstore.put, client)
    )


def _set_up_azure(port: int) -> ObjectStore:
    account = f"http://127.0.0.1:{port}/{_AZURE_ACCOUNT}"
    dated = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    head = "".join(f"{name}:{value}\n" for name, value in dated.items())
    signed = f"PUT{chr(10) * 12}{head}/{_AZURE_ACCOUNT}/{_AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), signed.encode(), hashlib.sha256)
    dated["Authorization"] = f"SharedKey {_AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    _ask(f"{account}/{BUCKET}?restype=container", "PUT", b"", dated)
    config: Any = {"account_name": _AZURE_ACCOUNT, "account_key": _AZURE_KEY, "endpoint": account}
    client = AzureStore(BUCKET, config=config, client_options={"allow_http": True})
    wrong = base64.b64encode(b"w" * 64).decode()
    return ObjectStore(
        "az", port, _AZURE_KEY, (wrong, _shared_access("2026-01-01")), azure_environment, partial(obstore.put, client)
    )


def _shared_access(end: str) -> str:
    """Returns a SAS token for reading and listing the container until the start of a day."""
    version, resource, rights, expiry = "2020-12-06", "c", "rl", f"{end}T00:00:00Z"
    signed = [rights, "", expiry, f"/blob/{_AZURE_ACCOUNT}/{BUCKET}", "", "", "", version, resource, *[""] * 7]
    digest = hmac.digest(base64.b64decode(_AZURE_KEY), "\n".join(signed).encode(), hashlib.sha256)
    parts = {"sv": version, "sr": resource, "sp": rights, "se": expiry, "sig": base64.b64encode(digest).decode()}
    return urlencode(parts)


def _set_up_gcs(port: int) -> ObjectStore:
    _ask(f"http://127.0.0.1:{port}/storage/v1/b?project=tests", "POST", json.dumps({"name": BUCKET}).encode())
    keys = [rsa.generate_private_key(65537, 2048) for _ in range(2)]
    front = _TokenProxy(port, keys[0].public_key())

    def account_of(key: rsa.RSAPrivateKey) -> str:
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
        names = {"type": "service_account", "client_email": "reader@tests.iam.gserviceaccount.com"}
        return json.dumps({**names, "private_key": pem, "private_key_id": "1"})

    def put(key: str, content: bytes) -> None:
        # Not by the client: the server knows uploads only by the JSON API.
        place = urlencode({"uploadType": "media", "name": key})
        _ask(f"http://127.0.0.1:{port}/upload/storage/v1/b/{BUCKET}/o?{place}", "POST", content)

    right, wrong = map(account_of, keys)
    return ObjectStore("gs", front.port, right, (wrong,), gcs_environment, put, front.close)


class _TokenProxy:
    """Forwards requests whose token is signed with a key, and refuses others."""

    def __init__(self, backend: int, key: rsa.RSAPublicKey) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                try:
                    token = self.headers.get("authorization", "").removeprefix("Bearer ")
                    jwt.decode(token, key, algorithms=["RS256"], options={"verify_aud": False})
                except jwt.PyJWTError:
                    self.answer(401, {}, b"<Error><Code>AuthenticationRequired</Code></Error>")
                    return
                connection = http.client.HTTPConnection("127.0.0.1", backend, timeout=60)
                kept = {name: value for name, value in self.headers.items() if name.lower() != "host"}
                connection.request(self.command, self.path, body or None, kept)
                with connection.getresponse() as answer:
                    self.answer(answer.status, dict(answer.getheaders()), answer.read())
                connection.close()

            def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
                self.send_response(status)
                known = {name: value for name, value in headers.items() if name.lower() not in _FRAMING}
                # The length of the answer to HEAD is that of the object.
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                for name, value in {**known, "Content-Length": length}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _iam(url: str, **parameters: str) -> str:
    scope = "Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"
    body = urlencode({"Version": "2010-05-08", **parameters}).encode()
    return _ask(f"{url}/", "POST", body, {"Authorization": f"AWS4-HMAC-SHA256 {scope}"})


def _ask(url: str, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> str:
    request = urllib.request.Request(url, body or None, dict(headers or {}), method=method)  # noqa: S310 - this machine
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine
        return str(answer.read().decode())


_COMMANDS: Final = {"s3": _moto, "az": _azurite, "gs": _fake_gcs}
_SETUPS: Final = {"s3": _set_up_s3, "az": _set_up_azure, "gs": _set_up_gcs}
STORES: Final = tuple(_COMMANDS)
