"""`fetch` from a real registry: digests, tags that move, broken transfers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import FetchRequest, fetch
from omni_stage.fetch.download import FetchError
from support.machine.tcp_proxy import TcpProxy, Toxics
from support.peers.registries import push, serve_registry
from support.processes.polling import wait_until

pytestmark = pytest.mark.full  # needs a program of the control plane

WEIGHTS = bytes(range(256)) * (24 << 12)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"not needed"}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_registry(tmp_path_factory.mktemp("registry")) as host:
        push(host, "org/omni", "v1", FILES)
        yield host


@pytest.fixture
def proxy(registry: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with TcpProxy(registry) as network:
        yield network


def wanted(network: TcpProxy, name: str, dest: Path, pin: Path | None = None) -> FetchRequest:
    return FetchRequest(f"oci://{network.target}/{name}", "main", dest, "", pin)


def test_files_are_fetched_by_tag_and_by_digest(proxy: TcpProxy, tmp_path: Path) -> None:
    request = wanted(proxy, "org/omni:v1", tmp_path)
    version = fetch(request, None)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert not (tmp_path / "README.md").exists()
    proxy.toxics = Toxics(refuse=True)
    proxy.cut()
    assert fetch(request, None) == version
    proxy.heal()
    by_digest = wanted(proxy, f"org/omni@sha256:{version}", tmp_path / "digest")
    assert fetch(by_digest, None) == version


def test_artifacts_that_are_not_there_are_reported(proxy: TcpProxy, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        fetch(wanted(proxy, "org/omni:v9", tmp_path), None)


def test_a_tag_that_moves_does_not_mix_two_versions(registry: str, proxy: TcpProxy, tmp_path: Path) -> None:
    push(registry, "org/moves", "v1", FILES)
    pin = tmp_path / "commit.json"
    version = fetch(wanted(proxy, "org/moves:v1", tmp_path / "a", pin), None)
    push(registry, "org/moves", "v1", {**FILES, "config.json": b"[]"})
    assert fetch(wanted(proxy, "org/moves:v1", tmp_path / "b", pin), None) == version
    assert (tmp_path / "b" / "config.json").read_bytes() == b"{}"
    assert fetch(wanted(proxy, "org/moves:v1", tmp_path / "c"), None) != version


def test_a_broken_transfer_resumes_where_it_stopped(
    proxy: TcpProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ended = threading.Event()

    def part() -> int:
        return max((path.stat().st_size for path in tmp_path.rglob("model.safetensors.*.part")), default=0)

    def cut() -> None:
        wait_until(lambda: part() > 0 or ended.is_set())
        proxy.toxics = Toxics(refuse=True)
        proxy.cut()

    proxy.toxics = Toxics(bytes_per_s=16 << 20)
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises(FetchError):
            fetch(wanted(proxy, "org/omni:v1", tmp_path), None)
    finally:
        ended.set()
        cutter.join()
    received = part()
    assert 0 < received < len(WEIGHTS)
    proxy.heal()
    fetch(wanted(proxy, "org/omni:v1", tmp_path), None)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert any("resuming" in record.message for record in caplog.records)
