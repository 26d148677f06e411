"""`fetch` from a local server with the Hugging Face Hub's API: tokens, resuming, and a second run without a network."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from omni_proto.pod_contract import ExitCode
from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import fetch, run_fetch
from omni_stage.fetch.download import FetchError, RemoteFile, download_file, has_file, part_path, safe_path
from omni_stage.fetch.request import FetchRequest, parse_uri, read_token
from omni_stage.fetch.weights import INDEX, select_weights
from support.hub import COMMIT, TOKEN, Hub, etag_of

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights" * 1000,
    "README.md": b"not needed",
    "pytorch_model.bin": b"a pickle",
}
SHARDED = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "spk_dict.pt": b"voices",
    "first.safetensors": b"1" * 300,
    "second.safetensors": b"2" * 200,
    "third.safetensors": b"3" * 100,
    "model.safetensors.index.json": json.dumps(
        {
            "metadata": {"total_size": 600},
            "weight_map": {
                "thinker.model.embed_tokens.weight": "first.safetensors",
                "thinker.lm_head.weight": "second.safetensors",
                "talker.codec_head.weight": "second.safetensors",
                "token2wav.code2wav_dit_model.proj_out.weight": "third.safetensors",
            },
        }
    ).encode(),
}


def request_into(dest: Path, component: str = "", commit_file: Path | None = None) -> FetchRequest:
    return FetchRequest("hf://org/model", "main", dest, component, commit_file)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(FILES, {"org/model": TOKEN}) as server:
        # huggingface_hub reads HF_ENDPOINT only when it is imported, so its constants are replaced.
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


def test_fetches_what_engines_read_and_nothing_else(hub: Hub, tmp_path: Path) -> None:
    assert fetch(request_into(tmp_path), TOKEN) == COMMIT
    assert (tmp_path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert not (tmp_path / "pytorch_model.bin").exists()
    assert not (tmp_path / "README.md").exists()


def test_second_run_needs_no_network(hub: Hub, tmp_path: Path) -> None:
    fetch(request_into(tmp_path), TOKEN)
    hub.shutdown()
    hub.server_close()
    assert fetch(request_into(tmp_path), None) == COMMIT


def test_interrupted_fetch_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    fetch(request_into(tmp_path), TOKEN)
    (tmp_path / "config.json").unlink()
    hub.sent.clear()
    assert fetch(request_into(tmp_path), TOKEN) == COMMIT
    assert hub.names_sent() == ["config.json"]


@pytest.mark.parametrize("token", [pytest.param("hf_wrong", id="wrong token"), pytest.param(None, id="no token")])
def test_refused_token_is_a_configuration_error(hub: Hub, tmp_path: Path, token: str | None) -> None:
    with pytest.raises(ConfigurationError, match="token") as caught:
        fetch(request_into(tmp_path), token)
    assert caught.value.details.field == "model.tokenSecretRef"
    assert "hf_wrong" not in str(caught.value)


def test_command_writes_the_termination_message(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    note = tmp_path / "termination"
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(note))
    file = tmp_path / "token"
    file.write_text("hf_wrong\n")
    assert run_fetch(request_into(tmp_path / "m"), file) is ExitCode.BAD_CONFIGURATION
    assert json.loads(note.read_text())["field"] == "model.tokenSecretRef"
    file.write_text(f"{TOKEN}\n")
    assert run_fetch(request_into(tmp_path / "m"), file) is ExitCode.DRAINED


@pytest.mark.parametrize("uri", ["org/model", "hf://model", "hf://../x", "http://host/x", "hf://a/b/c"])
def test_addresses_that_are_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_uri(uri)


@pytest.mark.parametrize("content", [pytest.param("", id="empty"), pytest.param("a b", id="two words")])
def test_token_files_that_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigurationError):
        read_token(file)


@pytest.mark.parametrize(
    ("component", "shards"),
    [
        pytest.param("qwen2_5_omni/thinker", {"first.safetensors", "second.safetensors"}, id="thinker"),
        pytest.param("qwen2_5_omni/talker", {"first.safetensors", "second.safetensors"}, id="talker and embedding"),
        pytest.param("qwen2_5_omni/token2wav", {"third.safetensors"}, id="token2wav"),
        pytest.param("generic/llm", {"first.safetensors", "second.safetensors", "third.safetensors"}, id="all"),
    ],
)
def test_a_component_gets_its_shards_and_an_index_of_them(
    hub: Hub, tmp_path: Path, component: str, shards: set[str]
) -> None:
    hub.files = SHARDED
    fetch(request_into(tmp_path, component), TOKEN)
    assert {file.name for file in tmp_path.glob("*.safetensors")} == shards
    index = json.loads((tmp_path / INDEX).read_text())
    assert set(index["weight_map"].values()) == shards
    assert (tmp_path / "spk_dict.pt").exists()


def test_interrupted_component_goes_on_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.files = SHARDED
    request = request_into(tmp_path, "qwen2_5_omni/thinker")
    fetch(request, TOKEN)
    (tmp_path / "second.safetensors").unlink()
    hub.sent.clear()
    fetch(request, TOKEN)
    assert hub.names_sent() == ["second.safetensors"]
    hub.shutdown()
    hub.server_close()
    assert fetch(request, None) == COMMIT


def test_a_directory_of_another_component_is_not_complete(hub: Hub, tmp_path: Path) -> None:
    hub.files = SHARDED
    fetch(request_into(tmp_path, "qwen2_5_omni/token2wav"), TOKEN)
    fetch(request_into(tmp_path, "qwen2_5_omni/thinker"), TOKEN)
    assert (tmp_path / "first.safetensors").exists()


def test_stages_that_share_a_cache_share_the_commit_though_the_branch_moves(hub: Hub, tmp_path: Path) -> None:
    hub.files = SHARDED
    pin = tmp_path / "commit.json"
    assert fetch(request_into(tmp_path / "a", "qwen2_5_omni/thinker", pin), TOKEN) == COMMIT
    hub.commit = moved = "b" * 40
    assert fetch(request_into(tmp_path / "b", "qwen2_5_omni/talker", pin), TOKEN) == COMMIT
    assert fetch(request_into(tmp_path / "c"), TOKEN) == moved


def test_missing_token_file_names_the_secret(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="tokenSecretRef"):
        read_token(tmp_path / "token")


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({}, id="no map"),
        pytest.param({"weight_map": {"other.weight": "a.safetensors"}}, id="another family"),
        pytest.param({"weight_map": {"thinker.weight": "../a.safetensors"}}, id="a path"),
        pytest.param({"weight_map": {"thinker.weight": "a.bin"}}, id="a pickle"),
    ],
)
def test_indexes_that_are_refused(index: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        select_weights(index, ("thinker.",))


def test_a_download_that_is_killed_goes_on_at_the_byte_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    """A second process resumes the partial file of a killed one, as when kubelet restarts the init container."""
    weights = bytes(range(256)) * (24 << 12)
    hub.files, hub.stop_at, hub.hangs = {**FILES, "model.safetensors": weights}, 22 << 20, True
    file = tmp_path / "token"
    file.write_text(TOKEN)
    command = [sys.executable, "-m", "omni_stage", "fetch", "--uri", "hf://org/model", "--dest", str(tmp_path / "m")]
    command += ["--token-file", str(file), "--log-format", "json"]
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as first:
        assert hub.stopped.wait(60)
        # The hub's client writes to the file in steps of 10 MiB.
        while not any(part.stat().st_size for part in (tmp_path / "m").rglob("*.part")):
            assert first.poll() is None
            time.sleep(0.02)
        first.kill()
    assert subprocess.run(command, env=environment, check=False, capture_output=True, timeout=100).returncode == 0
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == weights
    first_bytes = [start for name, start in hub.sent if name == "model.safetensors"]
    assert first_bytes[0] == 0
    assert first_bytes[1] >= 10 << 20


def test_an_unreachable_hub_is_named_and_worth_another_try(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the hub cannot be reached, the exit code is FAILED, not the one for a wrong configuration."""
    note = tmp_path / "termination"
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(note))
    hub.shutdown()
    hub.server_close()
    assert run_fetch(request_into(tmp_path / "m"), None) is ExitCode.FAILED
    message = json.loads(note.read_text())
    assert (message["reason"], message["field"]) == ("FetchFailed", "model.uri")
    assert "refused" in message["message"]


class TestOneFile:
    """After download_file, a file is complete and verified, or it does not exist."""

    DATA = b"weights" * 1000

    def remote(self, hub: Hub, **changes: Any) -> RemoteFile:
        address = f"{hub.url}/org/model/resolve/{COMMIT}/model.safetensors"
        return dataclasses.replace(
            RemoteFile("model.safetensors", address, etag_of(self.DATA), len(self.DATA)), **changes
        )

    @pytest.mark.parametrize("etag", ["0" * 64, "0" * 40], ids=["sha256", "git"])
    def test_what_is_not_what_was_announced_is_thrown_away(self, hub: Hub, tmp_path: Path, etag: str) -> None:
        """A file whose digest is not the one that the hub announced is deleted."""
        with pytest.raises(FetchError, match="damaged"):
            download_file(tmp_path, self.remote(hub, etag=etag), hub.url, TOKEN)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == []

    @pytest.mark.parametrize("leftover", [b"weights" * 10, b"x" * 7000, b"x" * 9000], ids=["part", "wrong", "too long"])
    def test_a_leftover_part_is_gone_on_with_or_found_out(self, hub: Hub, tmp_path: Path, leftover: bytes) -> None:
        """A valid partial file is resumed. One that is too long is discarded immediately.

        One with wrong content makes the attempt fail and is discarded, so that the next attempt succeeds.
        """
        file = self.remote(hub)
        part = part_path(tmp_path, file)
        part.parent.mkdir(parents=True)
        part.write_bytes(leftover)
        for _ in range(2):
            with contextlib.suppress(FetchError):
                download_file(tmp_path, file, hub.url, TOKEN)
        assert has_file(tmp_path, file)
        assert (tmp_path / "model.safetensors").read_bytes() == self.DATA
        assert not part.exists()

    def test_gits_digest_is_understood(self, hub: Hub, tmp_path: Path) -> None:
        """Instead of a SHA-256 digest, an ETag may be the SHA-1 digest of a git blob."""
        file = self.remote(hub, etag=hashlib.sha1(b"blob 7000\0" + self.DATA).hexdigest())  # noqa: S324
        download_file(tmp_path, file, hub.url, TOKEN)
        assert has_file(tmp_path, file)

    def test_pods_that_share_a_cache_take_turns_and_fetch_once(self, hub: Hub, tmp_path: Path) -> None:
        """Concurrent fetches of a file into one cache download it once."""
        with ThreadPoolExecutor(8) as pool:
            for _ in pool.map(lambda _: download_file(tmp_path, self.remote(hub), hub.url, TOKEN), range(8)):
                pass
        assert hub.names_sent() == ["model.safetensors"]

    @pytest.mark.parametrize("place", ["http://hub.example", "https://{host}"], ids=["another host", "in the clear"])
    def test_the_token_stays_with_the_hub_and_refusals_elsewhere_are_not_its_fault(
        self, hub: Hub, tmp_path: Path, place: str
    ) -> None:
        """The token is sent only to the hub's scheme and host. A 401 from elsewhere is not blamed on the token."""
        asked = place.format(host=hub.url.removeprefix("http://"))
        with pytest.raises(FetchError, match="storage answered 401"):
            download_file(tmp_path, self.remote(hub), asked, TOKEN)

    @pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", ""])
    def test_names_that_lead_out_of_the_directory_are_refused(self, name: str) -> None:
        with pytest.raises(FetchError):
            safe_path(name)
