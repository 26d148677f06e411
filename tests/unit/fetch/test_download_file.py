"""After download_file, a file is complete and verified, or it does not exist."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from omni_stage.fetch.download import FetchError, RemoteFile, download_file, has_file, part_path, safe_path
from omni_stage.fetch.hub import HubSource
from support.models.hub import COMMIT, TOKEN, Hub, etag_of

DATA = b"weights" * 1000
SOURCE = HubSource("hf://org/model", "main", TOKEN)


def remote(hub: Hub, **changes: Any) -> RemoteFile:
    address = f"{hub.url}/org/model/resolve/{COMMIT}/model.safetensors"
    return dataclasses.replace(RemoteFile("model.safetensors", address, etag_of(DATA), len(DATA)), **changes)


@pytest.mark.parametrize("etag", ["0" * 64, "0" * 40], ids=["sha256", "git"])
def test_what_is_not_what_was_announced_is_thrown_away(hub: Hub, tmp_path: Path, etag: str) -> None:
    """A file whose digest is not the one that the hub announced is deleted."""
    with pytest.raises(FetchError, match="damaged"):
        download_file(tmp_path, remote(hub, etag=etag), SOURCE)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("leftover", [b"weights" * 10, b"x" * 7000, b"x" * 9000], ids=["part", "wrong", "too long"])
def test_a_leftover_part_is_gone_on_with_or_found_out(hub: Hub, tmp_path: Path, leftover: bytes) -> None:
    """A valid partial file is resumed, and one that is too long is discarded immediately. A partial file with wrong
    content makes the attempt fail and is discarded, so that the next attempt succeeds."""
    file = remote(hub)
    part = part_path(tmp_path, file)
    part.parent.mkdir(parents=True)
    part.write_bytes(leftover)
    for _ in range(2):
        with contextlib.suppress(FetchError):
            download_file(tmp_path, file, SOURCE)
    assert has_file(tmp_path, file)
    assert (tmp_path / "model.safetensors").read_bytes() == DATA
    assert not part.exists()


@pytest.mark.parametrize("head", [b"blob 7000\0", b""], ids=["git", "Artifactory"])
def test_sha1_digests_are_understood(hub: Hub, tmp_path: Path, head: bytes) -> None:
    """Instead of a SHA-256 digest, an ETag may be the SHA-1 digest of a git blob, or of the content alone."""
    file = remote(hub, etag=hashlib.sha1(head + DATA).hexdigest())  # noqa: S324
    download_file(tmp_path, file, SOURCE)
    assert has_file(tmp_path, file)


def test_pods_that_share_a_cache_take_turns_and_fetch_once(hub: Hub, tmp_path: Path) -> None:
    """Concurrent fetches of a file into one cache download it once."""
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda _: download_file(tmp_path, remote(hub), SOURCE), range(8)):
            pass
    assert hub.names_sent() == ["model.safetensors"]


@pytest.mark.parametrize("place", ["http://hub.example", "https://{host}"], ids=["another host", "in the clear"])
def test_the_token_stays_with_the_hub_and_refusals_elsewhere_are_not_its_fault(
    hub: Hub, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token is sent only to the hub's scheme and host. A 401 from elsewhere is not blamed on the token."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", place.format(host=hub.url.removeprefix("http://")))
    with pytest.raises(FetchError, match="storage answered 401"):
        download_file(tmp_path, remote(hub), SOURCE)


@pytest.mark.parametrize(
    ("hub_address", "address"),
    [("http://LOCALHOST:{0}", "http://localhost:{0}"), ("http://localhost:{0}", "http://LocalHost:{0}")],
)
def test_the_token_goes_to_the_hub_however_its_host_is_written(
    hub: Hub, tmp_path: Path, hub_address: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = address.format(hub.server_port) + f"/org/model/resolve/{COMMIT}/model.safetensors"
    file = remote(hub, url=place)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub_address.format(hub.server_port))
    download_file(tmp_path, file, SOURCE)
    assert has_file(tmp_path, file)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ""])
def test_names_that_lead_out_of_the_directory_are_refused(name: str) -> None:
    with pytest.raises(FetchError):
        safe_path(name)
