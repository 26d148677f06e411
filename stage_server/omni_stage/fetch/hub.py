"""hf://ORG/NAME[/FOLDER]: a repository of the Hugging Face Hub, or of a mirror with its API (HF_ENDPOINT)."""

from __future__ import annotations

import re
from typing import BinaryIO
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.file_download import http_get

from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.fetch.download import FetchError, RemoteFile

_URI = re.compile(r"hf://([A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})((?:/\w[\w.-]*)*)\Z", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}\Z")


def parse_uri(uri: str) -> tuple[str, str]:
    """Returns ORG/NAME and FOLDER of hf://ORG/NAME/FOLDER; FOLDER may be empty. Raises ConfigurationError."""
    match = _URI.match(uri)
    if match is None:
        raise ConfigurationError("uri must be hf://ORG/NAME or hf://ORG/NAME/FOLDER", field="model.uri")
    return match[1], match[2].strip("/")


class HubSource:
    """A repository, or a folder of it. The token is sent only to the hub's own host."""

    def __init__(self, uri: str, revision: str, token: str | None) -> None:
        if token is not None and any(character.isspace() for character in token):
            raise ConfigurationError("the token file must hold one token", field="model.tokenSecretRef")
        self.identity = self._repository, self._folder = parse_uri(uri)
        self._revision = revision
        # False: never use a token from the environment.
        self._token: str | bool = token or False

    def look_up(self, pinned: str | None) -> tuple[str, dict[str, int | None]]:
        """Returns the commit, and the sizes of the files of the uri's folder."""
        wanted = pinned or self._revision
        info = HfApi(token=self._token).model_info(self._repository, revision=wanted, files_metadata=True, timeout=60)
        commit = info.sha or ""
        if not _COMMIT.match(commit):
            raise FetchError(
                f"the hub names no commit for revision {wanted!r} of {self._repository}", field="model.revision"
            )
        start = f"{self._folder}/" if self._folder else ""
        names = {item.rfilename: item.size for item in info.siblings or ()}
        return commit, {name.removeprefix(start): size for name, size in names.items() if name.startswith(start)}

    def find(self, version: str, name: str, size: int | None) -> RemoteFile:
        """Returns the hub's description of a file.

        The size from the hub's list of files is used if the response for the file has no Content-Length, because some
        proxies remove that header.
        """
        path = f"{self._folder}/{name}" if self._folder else name
        address = hf_hub_url(self._repository, path, revision=version)
        metadata = get_hf_file_metadata(address, token=self._token, retry_on_errors=True)
        found = size if metadata.size is None else metadata.size
        if metadata.etag is None or found is None:
            raise FetchError(f"the hub states no size or no ETag for {path}", field="model.uri")
        return RemoteFile(name, metadata.location, metadata.etag, found)

    def receive(self, file: RemoteFile, stream: BinaryIO, have: int) -> None:
        """Downloads from the hub, or from the signed address that it named."""
        # A signed address on another host carries its own credentials, so it must not get the token.
        own_host = _origin(file.url) == _origin(constants.ENDPOINT)
        headers = {"authorization": f"Bearer {self._token}"} if self._token and own_host else {}
        try:
            http_get(file.url, stream, resume_size=have, headers=headers, expected_size=file.size)
        except HfHubHTTPError as error:
            if own_host:
                raise
            # The storage's refusal does not mean that the token is wrong: signed addresses expire within about an hour.
            raise FetchError(
                f"the hub's storage answered {_status(error)} for {file.name}; try again", field="model.uri"
            ) from error

    def explain(self, error: Exception, pinned: str | None) -> OmniStageError | None:
        """Returns what an error of the hub's client means."""
        if isinstance(error, GatedRepoError):
            return self._refused("is gated; accept its licence and give a token that may read it")
        if isinstance(error, RevisionNotFoundError):
            recorded = ", which the commit file of the cache records; to look the revision up again, delete its folder"
            return ConfigurationError(
                f"{self._repository} has no revision {pinned or self._revision!r}{recorded if pinned else ''}",
                field="model.revision",
            )
        if isinstance(error, RepositoryNotFoundError):
            return self._refused("does not exist, or the token may not read it")
        if isinstance(error, HfHubHTTPError):
            code = _status(error)
            if code in (401, 403):
                return self._refused(f"was refused ({code}): the token is wrong or may not read it")
            return FetchError(f"the hub answered {code} for {self._repository}; try again", field="model.uri")
        return None

    def _refused(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"{self._repository} {why}", field="model.tokenSecretRef")


def _status(error: HfHubHTTPError) -> int:
    return error.response.status_code if error.response is not None else 0


def _origin(url: str) -> tuple[str, str, int | None]:
    """Returns scheme, host and port. The scheme is included, because a redirect from https to http would send the token
    unencrypted."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
