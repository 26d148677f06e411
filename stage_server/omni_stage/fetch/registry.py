"""oci://HOST[:PORT]/NAME[:TAG|@sha256:DIGEST]: an artifact of a registry whose layers are files, as by `oras push`.

The version is the digest of the manifest, so a pinned version is read by its digest. Layers that are archives, as those
of an image, are refused: kubelet mounts images itself (volumes[].image).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit

from huggingface_hub import get_session
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.file_download import http_get

from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.fetch.download import FetchError, RemoteFile

MAX_MANIFEST_BYTES: Final = 4 << 20
"""Registries accept no larger manifest."""
_URI = re.compile(
    r"oci://([a-z0-9][a-z0-9.-]*(?::[0-9]{1,5})?)/([a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::([\w][\w.-]{0,127})|@(sha256:[0-9a-f]{64}))?\Z",
    re.ASCII,
)
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})\Z")
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations that name the file of a layer: of ORAS, and of the CNCF's ModelPack."""
_UNPACK: Final = "io.deis.oras.content.unpack"
_ACCEPT: Final = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
_LOCAL: Final = ("localhost", "127.0.0.1")
"""Hosts that are asked without TLS, as other tools do."""
_DOCKER_HUB: Final = "docker.io"
_LOGIN_FIELD: Final = "model.tokenSecretRef"


class RegistrySource:
    """The files of an artifact. Credentials are sent only to its registry and to the token service that it names."""

    def __init__(self, uri: str, token: str | None) -> None:
        match = _URI.match(uri)
        if match is None:
            raise ConfigurationError("uri must be oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:...", field="model.uri")
        host, self._name, tag, digest = match.groups()
        self.identity = (uri, "")
        self._reference = digest or tag or "latest"
        self._basic = _find_login(token, host) if token else ""
        scheme = "http" if host.partition(":")[0] in _LOCAL else "https"
        self._base = f"{scheme}://{'registry-1.docker.io' if host == _DOCKER_HUB else host}/v2/{self._name}"
        self._challenge = ""
        self._files: dict[str, RemoteFile] = {}

    def look_up(self, pinned: str | None) -> tuple[str, dict[str, int | None]]:
        """Returns the digest of the manifest without its prefix, and the sizes of the files of its layers."""
        reference = f"sha256:{pinned}" if pinned else self._reference
        body = self._get(f"{self._base}/manifests/{reference}", {"accept": _ACCEPT})
        version = hashlib.sha256(body).hexdigest()
        if reference.startswith("sha256:") and reference != f"sha256:{version}":
            raise FetchError(f"the registry sent another manifest than {reference}", field="model.uri")
        self._files = {file.name: file for file in read_files(body, self.identity[0], self._base)}
        return version, {name: file.size for name, file in self._files.items()}

    def find(self, version: str, name: str, size: int | None) -> RemoteFile:
        """Returns the layer with that name."""
        if name not in self._files:
            raise ConfigurationError(f"{self.identity[0]} holds no {name}", field="model.uri")
        return self._files[name]

    def receive(self, file: RemoteFile, stream: BinaryIO, have: int) -> None:
        """Downloads the rest of a layer. Its digest is checked afterwards."""
        if have >= file.size:
            return
        while True:
            # Tokens of registries are valid for minutes, so each file gets a new one. Some registries know no open
            # ranges.
            headers = self._authorize()
            asked = {**headers, "Range": f"bytes=0-{file.size - 1}"}
            try:
                http_get(file.url, stream, resume_size=have, headers=asked)
                return
            except HfHubHTTPError as error:
                code = error.response.status_code if error.response is not None else 0
                if code == 416 and have:
                    # And some know none.
                    stream.truncate(0)
                    stream.seek(0)
                    http_get(file.url, stream, headers=headers)
                    return
                # The connection broke, and the token had ended meanwhile: continue with a new one.
                if code != 401 or stream.tell() <= have:
                    raise
                have = stream.tell()

    def explain(self, error: Exception, pinned: str | None) -> OmniStageError | None:
        """Returns what an answer of the registry means."""
        if not isinstance(error, HfHubHTTPError) or error.response is None:
            return None
        return self._explain_status(error.response.status_code)

    def _explain_status(self, code: int) -> OmniStageError:
        uri, _ = self.identity
        if code in (401, 403):
            why = f"{uri} was refused ({code}): the login is missing or wrong, or may not read it"
            return ConfigurationError(why, field=_LOGIN_FIELD)
        if code == 404:
            return ConfigurationError(f"{uri} does not exist, or the login may not read it", field="model.uri")
        return FetchError(f"the registry answered {code} for {uri}; try again", field="model.uri")

    def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        """Returns the body of an answer. Answers the registry's question who asks."""
        for _ in range(2):
            asked = {**headers, **self._authorize()}
            with get_session().stream("GET", url, headers=asked, timeout=60) as answer:
                if answer.status_code == 401 and not self._challenge:
                    self._challenge = answer.headers.get("www-authenticate", "Basic")
                    continue
                if answer.status_code != 200:
                    raise self._explain_status(answer.status_code)
                return _read_bounded(answer)
        raise self._explain_status(401)

    def _authorize(self) -> dict[str, str]:
        """Returns the headers that the registry's challenge demands; none before there was one."""
        kind, _, rest = self._challenge.partition(" ")
        if not kind:
            return {}
        if kind.lower() != "bearer":
            return {"authorization": f"Basic {self._basic}"} if self._basic else {}
        asked = dict(_PARAMETER.findall(rest))
        realm = urlsplit(asked.get("realm", ""))
        if realm.scheme != "https" and realm.hostname not in _LOCAL:
            raise ConfigurationError(f"the token service of {self.identity[0]} has no TLS", field="model.uri")
        parameters = {"scope": f"repository:{self._name}:pull"} | {k: asked[k] for k in ("service",) if k in asked}
        headers = {"authorization": f"Basic {self._basic}"} if self._basic else {}
        with get_session().stream("GET", asked["realm"], params=parameters, headers=headers, timeout=60) as answer:
            if answer.status_code != 200:
                raise self._explain_status(answer.status_code)
            given = json.loads(_read_bounded(answer))
        return {"authorization": f"Bearer {given.get('token') or given.get('access_token')}"}


def read_files(manifest: bytes, uri: str, base: str) -> list[RemoteFile]:
    """Returns the files of a manifest's layers. base: address of the repository. Raises ConfigurationError."""
    try:
        layers = json.loads(manifest)["layers"]
        found = [_read_layer(layer, base) for layer in layers]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{uri} is no artifact with layers; an index of several platforms is not read", field="model.uri"
        ) from error
    if any(file is None for file in found):
        raise ConfigurationError(
            f"{uri} has layers that are archives, as images have; mount it with volumes[].image and give file:///PATH, "
            "or push the files themselves, e.g. with oras push",
            field="model.uri",
        )
    return [file for file in found if file is not None]


def _read_layer(layer: Mapping[str, Any], base: str) -> RemoteFile | None:
    notes = layer.get("annotations") or {}
    name = next((notes[title] for title in _TITLES if title in notes), None)
    digest = _DIGEST.match(layer["digest"])
    if name is None or notes.get(_UNPACK) == "true" or digest is None:
        return None
    return RemoteFile(str(name), f"{base}/blobs/{digest[0]}", digest[1], int(layer["size"]))


def _read_bounded(answer: Any) -> bytes:
    body = bytearray()
    for chunk in answer.iter_bytes():
        body += chunk
        if len(body) > MAX_MANIFEST_BYTES:
            raise FetchError("the registry's answer is too long", field="model.uri")
    return bytes(body)


def _find_login(text: str, host: str) -> str:
    """Returns the login for a host in a Docker configuration (.dockerconfigjson), in HTTP's Basic form.

    Empty if it has none. Raises ConfigurationError.
    """
    try:
        logins = json.loads(text)["auths"]
        found = {re.sub(r"^https?://", "", key).partition("/")[0]: login for key, login in logins.items()}
        login = found.get(host) or (found.get("index.docker.io") if host == _DOCKER_HUB else None)
        if login is None:
            return ""
        if login.get("auth"):
            return base64.b64encode(base64.b64decode(login["auth"], validate=True)).decode()
        return base64.b64encode(f"{login['username']}:{login['password']}".encode()).decode()
    except (ValueError, KeyError, TypeError, AttributeError, binascii.Error) as error:
        raise ConfigurationError(
            "for oci://, tokenSecretRef names a Docker configuration: a Secret of the type "
            "kubernetes.io/dockerconfigjson, and the key .dockerconfigjson",
            field=_LOGIN_FIELD,
        ) from error
