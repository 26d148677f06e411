"""s3://BUCKET[/PATH], gs://BUCKET[/PATH] and az://CONTAINER[/PATH]: objects in a bucket, read with object_store.

Who asks comes from tokenSecretRef, or else from the environment as each cloud's tools define it: variables, a workload
identity or an instance's role. Objects have no revision. The version is the digest of the list of objects, and every
range is asked for by the ETag of that list, so an object that changes meanwhile is noticed.
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
from datetime import timedelta
from typing import Any, BinaryIO, Final

import obstore
from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.fetch.download import FetchError, RemoteFile

MAX_OBJECTS: Final = 10_000
"""Most objects below a path. A bucket of other things would cost a list of any length at each start of a pod."""
RANGE_BYTES: Final = 32 << 20
"""Bytes of one request, which must complete within the timeout of _TIMES."""

_URI = re.compile(r"(s3|gs|az)://([a-z0-9][a-z0-9._-]*)((?:/\w[\w.=-]*)*)\Z", re.ASCII)
_TIMES: Final = {"connect_timeout": timedelta(seconds=10), "timeout": timedelta(minutes=5)}
_PLAIN: Final = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""object_store's variables that allow an endpoint without TLS. Options for the client replace them."""
_RETRY: Final[Any] = {"max_retries": 5, "retry_timeout": timedelta(minutes=2)}
_STATUS: Final = re.compile(r"status code: ([0-9]{3})\b")
_ENDED: Final = re.compile(r"<Code>(ExpiredToken|InvalidToken|TokenRefreshRequired)</Code>")
"""What S3 says with status 400 of a session that has ended."""
_LOGIN_FIELD: Final = "model.tokenSecretRef"
_CHANGED: Final = "was changed while it was downloaded; the next attempt lists it again"


class BucketSource:
    """The objects below a path of a bucket."""

    def __init__(self, uri: str, token: str | None) -> None:
        match = _URI.match(uri)
        if match is None:
            raise ConfigurationError("uri must be s3://, gs:// or az://BUCKET/PATH", field="model.uri")
        scheme, bucket, path = match[1], match[2], match[3].strip("/")
        self.identity = (uri, "")
        self._prefix = f"{path}/" if path else ""
        self._store = _open(scheme, bucket, token)
        self._listed: dict[str, RemoteFile] = {}

    def look_up(self, pinned: str | None) -> tuple[str, dict[str, int | None]]:
        """Returns the digest of the list of objects, and their sizes."""
        uri, _ = self.identity
        digest = hashlib.sha256()
        self._listed = {}
        for page in obstore.list(self._store, self._prefix or None, chunk_size=1000):
            for entry in page:
                name = entry["path"].removeprefix(self._prefix)
                etag = _quote(entry["e_tag"]) or entry["last_modified"].isoformat()
                self._listed[name] = RemoteFile(name, entry["path"], etag, entry["size"])
            if len(self._listed) > MAX_OBJECTS:
                raise ConfigurationError(
                    f"{uri} holds more than {MAX_OBJECTS:,} objects; name the folder of one checkpoint",
                    field="model.uri",
                )
        for name, file in sorted(self._listed.items()):
            digest.update(json.dumps([name, file.etag, file.size]).encode())
        return digest.hexdigest(), {name: file.size for name, file in self._listed.items()}

    def find(self, version: str, name: str, size: int | None) -> RemoteFile:
        """Returns what the list says of an object."""
        if name not in self._listed:
            raise ConfigurationError(f"{self.identity[0]} holds no {name}", field="model.uri")
        return self._listed[name]

    def receive(self, file: RemoteFile, stream: BinaryIO, have: int) -> None:
        """Downloads in ranges, each only if the object still has its ETag."""
        # A store that lists no ETags has only times.
        named = file.etag.endswith('"')
        while have < file.size:
            options: Any = {"range": (have, min(have + RANGE_BYTES, file.size))}
            options |= {"if_match": file.etag} if named else {}
            answer = obstore.get(self._store, file.url, options=options)
            if named and _quote(answer.meta["e_tag"]) not in (None, file.etag):
                raise FetchError(f"{file.name} {_CHANGED}", field="model.uri")
            for chunk in answer.stream(1 << 20):
                stream.write(chunk)
                have += len(chunk)

    def explain(self, error: Exception, pinned: str | None) -> OmniStageError | None:
        """Returns what an error of object_store means."""
        uri, _ = self.identity
        # object_store reports a refused list, unlike a refused object, only in the error's text.
        found = _STATUS.search(str(error)) if isinstance(error, BaseError) else None
        status = found[1] if found else ""
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in ("401", "403")
        if refused or (status == "400" and _ENDED.search(str(error))):
            return ConfigurationError(
                f"{uri} was refused: the credentials are wrong, have expired, or may not list and read it",
                field=_LOGIN_FIELD,
            )
        if isinstance(error, FileNotFoundError) or status == "404":
            return ConfigurationError(f"{uri} does not exist, or an object of it was deleted", field="model.uri")
        if isinstance(error, PreconditionError):
            return FetchError(f"an object of {uri} {_CHANGED}", field="model.uri")
        if isinstance(error, InvalidPathError):
            return ConfigurationError(f"{uri} holds an object whose name is no path", field="model.uri")
        if isinstance(error, BaseError):
            return FetchError(
                f"{uri} cannot be read ({_shorten(error)}); check the network, the endpoint, the region and the "
                "credentials",
                field="model.uri",
            )
        return None


def _quote(etag: str | None) -> str | None:
    """Returns an ETag as HTTP writes it. Azure's lists leave the quotation marks out."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


def _open(scheme: str, bucket: str, token: str | None) -> S3Store | GCSStore | AzureStore:
    """Returns the store. Settings in the environment hold where the token says nothing. Raises ConfigurationError."""
    options: Any = {**_TIMES, "allow_http": os.environ.get(_PLAIN[scheme], "").lower() in ("1", "true")}
    try:
        if scheme == "s3":
            keys: Any = _aws_keys(token) if token else {}
            return S3Store(bucket, config=keys, client_options=options, retry_config=_RETRY)
        if scheme == "gs":
            account: Any = {"service_account_key": token} if token else {}
            return GCSStore(bucket, config=account, client_options=options, retry_config=_RETRY)
        key: Any = {"sas_key" if token and "sig=" in token else "account_key": token} if token else {}
        return AzureStore(bucket, config=key, client_options=options, retry_config=_RETRY)
    except (BaseError, ValueError) as error:
        # The text of the error may hold the token.
        forms = {
            "s3": "a file of AWS credentials",
            "gs": "the JSON key of a service account",
            "az": "a key of the storage account or a SAS token, and AZURE_STORAGE_ACCOUNT_NAME must be set",
        }
        raise ConfigurationError(
            f"the settings or credentials of {scheme}:// cannot be used: with tokenSecretRef, give {forms[scheme]}",
            field=_LOGIN_FIELD,
        ) from error


def _aws_keys(text: str) -> dict[str, str]:
    """Returns the keys in a file of AWS credentials: of [default], or of its only section. Raises ValueError."""
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError("not an INI file") from error
    sections = parser.sections()
    section = "default" if "default" in sections else sections[0] if len(sections) == 1 else ""
    found = {
        name: parser.get(section, f"aws_{name}", fallback="")
        for name in ("access_key_id", "secret_access_key", "session_token")
    } | {"region": parser.get(section, "region", fallback="")}
    if not found["access_key_id"] or not found["secret_access_key"]:
        raise ValueError("no keys")
    return {name: value for name, value in found.items() if value}


def _shorten(error: Exception) -> str:
    # The text may hold an address whose query carries a signature, the store's XML, and the error's own fields.
    text = " ".join(str(error).partition("\n\nDebug source")[0].partition("<")[0].split())
    return re.sub(r"\?\S*", "?...", text)[:200]
