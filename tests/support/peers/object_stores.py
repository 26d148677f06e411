"""Object stores of others, on this machine: moto (S3) and Azurite. Both check signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import obstore
from obstore.store import AzureStore, S3Store

from omni_cli.local.ports import pick_ports
from support.processes.foreign_programs import install_environment, install_package
from support.processes.process import ChildProcess, listening

BUCKET: Final = "models"
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
    wrong: str
    """Credentials that it refuses."""
    environment: Callable[[int], Mapping[str, str]]
    """The pod's variables, for the port at which the store is reached."""
    client: Any

    def put(self, key: str, content: bytes) -> None:
        obstore.put(self.client, key, content)


@contextmanager
def serve(name: str, folder: Path) -> Iterator[ObjectStore]:
    """Runs the store of a scheme. Raises RuntimeError if it cannot be installed."""
    (port,) = pick_ports(1)
    running = ChildProcess(name, _COMMANDS[name](port, folder), folder / f"{name}.log")
    running.start()
    try:
        running.wait_until(lambda: listening(port))
        yield _SETUPS[name](port)
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
    return ObjectStore("s3", port, file_of(keys["SecretAccessKey"]), file_of("w" * 40), s3_environment, client)


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
    return ObjectStore("az", port, _AZURE_KEY, wrong, azure_environment, client)


def _iam(url: str, **parameters: str) -> str:
    scope = "Credential=x/20260101/us-east-1/iam/aws4_request, SignedHeaders=host, Signature=0"
    body = urlencode({"Version": "2010-05-08", **parameters}).encode()
    return _ask(f"{url}/", "POST", body, {"Authorization": f"AWS4-HMAC-SHA256 {scope}"})


def _ask(url: str, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> str:
    request = urllib.request.Request(url, body or None, dict(headers or {}), method=method)  # noqa: S310 - this machine
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - this machine
        return str(answer.read().decode())


_COMMANDS: Final = {"s3": _moto, "az": _azurite}
_SETUPS: Final = {"s3": _set_up_s3, "az": _set_up_azure}
STORES: Final = tuple(_COMMANDS)
