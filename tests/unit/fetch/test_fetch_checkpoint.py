"""`fetch` from a local server with the Hugging Face Hub's API: tokens, resuming, and a second run without a network."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from omni_proto.pod_contract import ExitCode
from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import INDEX, FetchRequest, fetch, read_token, run_fetch, select_weights
from omni_stage.fetch.hub import parse_uri
from support.models.hub import COMMIT, FILES, TOKEN, Hub
from support.processes.polling import PATIENCE_S

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


def test_interrupted_fetch_resumes_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    "uri",
    [
        "org/model",
        "hf://model",
        "hf://../x",
        "http://host/x",
        "hf://a/b/",
        "hf://a/b/../c",
        "hf://a/b/.c",
        "hf://a/b/c@v1",
    ],
)
def test_addresses_that_are_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_uri(uri)


@pytest.mark.parametrize("content", [pytest.param("", id="empty"), pytest.param("a b", id="two words")])
def test_token_files_that_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(ConfigurationError):
        fetch(request_into(tmp_path), read_token(file))


def test_a_folder_of_a_repository_is_a_checkpoint_of_its_own(hub: Hub, tmp_path: Path) -> None:
    """A voice of rhasspy/piper-voices: its graph and settings, without other voices, samples and other formats."""
    place, joe = "en/en_US/joe/medium", {"en_US-joe-medium.onnx": b"joe" * 1000, "en_US-joe-medium.onnx.json": b"{}"}
    hub.files = {f"{place}/{name}": data for name, data in joe.items()} | {
        "voices.json": b"{}",
        f"{place}/MODEL_CARD": b"card",
        f"{place}/samples/speaker_0.mp3": b"mp3",
        f"{place}-2/en_US-joe-medium.onnx": b"another",
        "en/en_US/amy/low/en_US-amy-low.onnx": b"amy",
    }
    request = FetchRequest(f"hf://org/model/{place}", "main", tmp_path / "joe", "voice/vits", tmp_path / "commit.json")
    assert fetch(request, TOKEN) == COMMIT
    assert {file.name: file.read_bytes() for file in request.dest.iterdir() if file.name[0] != "."} == joe
    (request.dest / "en_US-joe-medium.onnx.json").unlink()
    hub.sent.clear()
    assert fetch(request, TOKEN) == COMMIT
    assert hub.names_sent() == [f"{place}/en_US-joe-medium.onnx.json"]
    amy = dataclasses.replace(request, uri="hf://org/model/en/en_US/amy/low", dest=tmp_path / "amy")
    assert fetch(amy, TOKEN) == COMMIT
    hub.sent.clear()
    fetch(dataclasses.replace(amy, dest=tmp_path / "joe-of-old", uri=request.uri), TOKEN)
    assert fetch(dataclasses.replace(amy, dest=tmp_path / "joe-of-old"), TOKEN) == COMMIT
    assert hub.names_sent()[-1] == "en/en_US/amy/low/en_US-amy-low.onnx", "another folder's files do not complete it"
    hub.shutdown()
    hub.server_close()
    assert fetch(request, None) == fetch(amy, None) == COMMIT


@pytest.mark.parametrize(
    ("uri", "component", "told"),
    [
        ("hf://org/model", "voice/vits", "org/model holds no config.json with safetensors weights or *.onnx at commit"),
        ("hf://org/model/joe", "generic/llm", "the folder joe of org/model holds no config.json with safetensors"),
        ("hf://org/model/jo", "voice/vits", f"at commit {COMMIT}: there is no such folder"),
        ("hf://org/model/joe/voice.onnx", "voice/vits", "there is no such folder"),
    ],
)
def test_folders_without_a_checkpoint_are_named(hub: Hub, tmp_path: Path, uri: str, component: str, told: str) -> None:
    hub.files = {"joe/voice.onnx": b"1", "joe/voice.onnx.json": b"{}"}
    with pytest.raises(ConfigurationError, match=re.escape(told)) as caught:
        fetch(FetchRequest(uri, "main", tmp_path, component), TOKEN)
    assert caught.value.details.field == "model.uri"


def test_only_a_component_that_reads_graphs_gets_them(hub: Hub, tmp_path: Path) -> None:
    hub.files = {**FILES, "model.onnx": b"1" * 100, "onnx/model.onnx": b"2" * 100}
    for component in ("generic/llm", "voice/vits"):
        fetch(request_into(tmp_path / component, component), TOKEN)
    assert not list((tmp_path / "generic").rglob("*.onnx"))
    assert [file.name for file in (tmp_path / "voice").rglob("*.onnx")] == ["model.onnx"]


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


@pytest.mark.parametrize("lacks", ["", "third.safetensors"])
def test_weights_that_the_index_does_not_name_are_not_fetched(hub: Hub, tmp_path: Path, lacks: str) -> None:
    """Mistral's repositories hold all weights twice. If a stale index names missing files, all weights are fetched."""
    hub.files = {name: data for name, data in SHARDED.items() if name != lacks}
    shards = {name for name in hub.files if name.endswith(".safetensors")}
    hub.files |= {"consolidated.safetensors": b"123" * 200, "encoder/model.safetensors": b"4"}
    fetch(request_into(tmp_path, "generic/llm"), TOKEN)
    twice = {"consolidated.safetensors"} if lacks else set()
    assert {file.name for file in tmp_path.glob("*.safetensors")} == shards | twice
    assert (tmp_path / "encoder/model.safetensors").read_bytes() == b"4"


def test_interrupted_component_resumes_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
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


def test_stages_serve_one_commit_although_somebody_deletes_its_record(hub: Hub, tmp_path: Path) -> None:
    hub.files = SHARDED
    pin = tmp_path / "commit.json"
    thinker, talker = (
        request_into(tmp_path / name, f"qwen2_5_omni/{name}", commit_file=pin) for name in ("thinker", "talker")
    )
    assert fetch(thinker, TOKEN) == COMMIT
    pin.unlink()
    hub.commit = moved = "e" * 40
    assert fetch(talker, TOKEN) == moved, "it cannot know of the other stage's folder"
    assert fetch(thinker, TOKEN) == moved
    pin.unlink()
    assert [fetch(talker, None), fetch(thinker, None)] == [moved, moved], "without the network"
    assert json.loads(pin.read_text())["commit"] == moved


def test_a_commit_without_weights_is_not_recorded(hub: Hub, tmp_path: Path) -> None:
    """If it were recorded while the repository is still being uploaded, all later pods of a shared cache would fail."""
    pin = tmp_path / "commit.json"
    hub.files = {"config.json": b"{}"}
    with pytest.raises(ConfigurationError, match=f"no config.json with safetensors weights at commit {COMMIT}"):
        fetch(request_into(tmp_path / "m", commit_file=pin), TOKEN)
    hub.files, hub.commit = FILES, "d" * 40
    assert fetch(request_into(tmp_path / "m", commit_file=pin), TOKEN) == hub.commit


def test_a_mirror_that_omits_the_size_is_read(hub: Hub, tmp_path: Path) -> None:
    hub.reports_sizes = False
    assert fetch(request_into(tmp_path), TOKEN) == COMMIT


@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_is_busy_for_a_moment_is_asked_again(hub: Hub, tmp_path: Path, status: int) -> None:
    hub.failures = [status]
    assert fetch(request_into(tmp_path), TOKEN) == COMMIT


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


def command(hub: Hub, tmp_path: Path) -> dict[str, Any]:
    """Returns the arguments of subprocess for `fetch` into tmp_path/m."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    args = [sys.executable, "-m", "omni_stage", "fetch", "--uri", "hf://org/model", "--dest", str(tmp_path / "m")]
    args += ["--token-file", str(file), "--log-format", "json"]
    changes = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    return {"args": args, "env": os.environ | changes}


def test_a_download_that_is_killed_resumes_at_the_byte_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    """A second process resumes the partial file of a killed one, as when kubelet restarts the init container."""
    weights = bytes(range(256)) * (24 << 12)
    hub.files, hub.stop_at, hub.hangs = {**FILES, "model.safetensors": weights}, 22 << 20, True
    with subprocess.Popen(**command(hub, tmp_path), stderr=subprocess.DEVNULL) as first:
        assert hub.stopped.wait(PATIENCE_S)
        # The hub's client writes to the file in steps of 10 MiB.
        while not any(part.stat().st_size for part in (tmp_path / "m").rglob("*.part")):
            assert first.poll() is None
            time.sleep(0.02)
        first.terminate()
    assert first.returncode == ExitCode.ABORTED, "process 1 of a container would ignore SIGTERM without a handler"
    assert (
        subprocess.run(**command(hub, tmp_path), check=False, capture_output=True, timeout=PATIENCE_S).returncode == 0
    )
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == weights
    first_bytes = [start for name, start in hub.sent if name == "model.safetensors"]
    assert first_bytes[0] == 0
    assert first_bytes[1] >= 10 << 20


def test_the_log_holds_no_signature_of_an_address(hub: Hub, tmp_path: Path) -> None:
    """The second transfer is interrupted, so the hub's client also logs its warning, which contains the address."""
    hub.repositories["org/model"] = None
    hub.signature, hub.stop_at = "X-Amz-Signature=s3cret", 700
    done = subprocess.run(**command(hub, tmp_path), check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any("http://localhost" in line["message"] for line in lines), "the warning itself is kept"
    assert "s3cret" not in done.stderr


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
