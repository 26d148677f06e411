"""On a volume that is really full, errors name the path and the remedy, and work resumes once there is space."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from omni_proto.client import AsyncOmniClient
from omni_proto.pod_contract import ExitCode
from omni_stage.errors import OmniStageError
from omni_stage.fetch.checkpoint import FetchRequest, fetch, run_fetch
from omni_stage.fetch.download import FetchError
from omni_stage.service.server.ports import Ports
from support.machine.small_volume import VolumeNotMountedError, fill, small_volume
from support.models.hub import COMMIT, Hub
from support.processes.polling import PATIENCE_S
from support.processes.stage_processes import CHEAP, StageProcess, chain_configs, pick_chain_ports

MIB = 1 << 20
WEIGHTS = bytes(range(256)) * (3 * MIB // 256)


class Transfers(list[tuple[str, int]]):
    """The hub's list of transfers. Calls `on_weights` when the transfer of the weights begins."""

    def __init__(self, on_weights: Any) -> None:
        super().__init__()
        self._on_weights = on_weights

    def append(self, item: tuple[str, int]) -> None:
        super().append(item)
        if item[0] == "model.safetensors":
            self._on_weights()


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "volume"
    place.mkdir()
    with ExitStack() as stack:
        try:
            yield stack.enter_context(small_volume(place, 8))
        except VolumeNotMountedError as error:
            pytest.skip(f"needs root or user namespaces, for a tmpfs: {error}")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub({"config.json": b"{}", "model.safetensors": WEIGHTS}, {"org/model": None}) as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        yield server


def request_into(volume: Path) -> FetchRequest:
    return FetchRequest("hf://org/model", "main", volume / "model")


def test_a_full_volume_is_reported_before_the_weights(hub: Hub, volume: Path) -> None:
    ballast = fill(volume, leave=MIB)
    with pytest.raises(FetchError, match=r"needs 3 MiB more.*has [01] MiB.*larger claim") as caught:
        fetch(request_into(volume), None)
    assert str(volume) in str(caught.value)
    assert caught.value.details.field == "model.cache"
    assert "model.safetensors" not in hub.names_sent()
    ballast.unlink()
    assert fetch(request_into(volume), None) == COMMIT
    assert (volume / "model" / "model.safetensors").read_bytes() == WEIGHTS


def test_a_volume_that_fills_during_a_download(
    hub: Hub, volume: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download whose volume fills after the check for space fails with a reason, and resumes once there is space."""
    note = tmp_path / "termination"
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(note))
    hub.sent = Transfers(lambda: fill(volume, leave=MIB))
    assert run_fetch(request_into(volume), None) is ExitCode.FAILED
    said = json.loads(note.read_text())
    assert (said["reason"], said["field"]) == ("FetchFailed", "model.cache")
    assert f"{volume}/model is full" in said["message"]
    assert "larger claim" in said["message"]
    hub.sent = []
    (volume / "ballast").unlink()
    assert run_fetch(request_into(volume), None) is ExitCode.DRAINED
    assert (volume / "model" / "model.safetensors").read_bytes() == WEIGHTS
    ((_, first_byte),) = [sent for sent in hub.sent if sent[0] == "model.safetensors"]
    assert first_byte > 0, "the download resumes where it stopped"


def test_a_termination_message_without_room_changes_no_exit_code(
    hub: Hub, volume: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMNI_TERMINATION_LOG", str(volume / "termination"))
    fill(volume)
    assert run_fetch(FetchRequest("ftp://org/model", "main", volume / "model"), None) is ExitCode.BAD_CONFIGURATION
    (record,) = [record for record in caplog.records if "termination message" in record.message]
    assert (record.__dict__["path"], record.__dict__["error"]) == (
        str(volume / "termination"),
        os.strerror(errno.ENOSPC),
    )


def test_an_address_file_without_room_is_named(volume: Path) -> None:
    fill(volume)
    with pytest.raises(OmniStageError, match=r"cannot write .*volume/a\.json: No space left"):
        Ports(1, 2, 3).write(volume / "a.json")


@pytest.mark.pipeline
def test_a_stage_whose_log_is_full_keeps_serving(tmp_path: Path) -> None:
    """A stage keeps serving although its log is /dev/full, where each write fails with ENOSPC."""
    configs = chain_configs(pick_chain_ports())

    class Deaf(StageProcess):
        @property
        def log(self) -> Path:
            return Path("/dev/full")

        def read_log(self) -> str:
            return "/dev/full"

    async def ask(port: int) -> list[str]:
        async with AsyncOmniClient(f"grpc://127.0.0.1:{port}") as client:
            sampling = {"thinker": {"max_tokens": 2}, "talker": {"max_tokens": 2}}
            return [(await client.run(raw_text="hello", sampling=sampling, timeout=PATIENCE_S)).text for _ in range(3)]

    with Deaf(list(configs.values()), tmp_path, CHEAP) as stages:
        stages.start()
        answers = asyncio.run(ask(stages.ports["thinker"]["grpc"]))
        assert all(answers)
        assert len(answers) == 3
        assert stages.health("thinker", "") == "SERVING"
