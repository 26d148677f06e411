"""`fetch` from a real registry: digests, tags that move, broken transfers, logins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import constants

from omni_stage.errors import ConfigurationError
from omni_stage.fetch.checkpoint import FetchRequest, fetch
from omni_stage.fetch.download import FetchError
from support.machine.tcp_proxy import TcpProxy, Toxics
from support.peers.registries import TokenService, ask_password, docker_config, push, serve_registry
from support.processes.polling import wait_until

pytestmark = pytest.mark.full  # downloads the registry

WEIGHTS = bytes(range(256)) * (24 << 12)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"not needed"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which registries keep what is pushed."""
    return tmp_path_factory.mktemp("registry")


@pytest.fixture(scope="module")
def registry(storage: Path) -> Iterator[str]:
    with serve_registry(storage) as host:
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
    by_digest = wanted(proxy, f"org/omni@sha256:{version}", tmp_path / "digest")
    assert fetch(by_digest, None) == version
    proxy.toxics = Toxics(refuse=True)
    proxy.cut()
    assert fetch(request, None) == version


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


def received(folder: Path) -> int:
    return max((path.stat().st_size for path in folder.rglob("model.safetensors.*.part")), default=0)


def fetch_through_a_break(
    network: TcpProxy, request: FetchRequest, token: str | None, then: Callable[[], None] | None = None
) -> None:
    """Fetches over a network that breaks once some bytes of the weights have arrived. With `then`, this is called
    instead."""
    ended = threading.Event()

    def cut() -> None:
        wait_until(lambda: received(request.dest) > 0 or ended.is_set())
        if then is None:
            network.toxics = Toxics(refuse=True)
            network.cut()
        elif not ended.is_set():
            then()

    network.toxics = Toxics(bytes_per_s=16 << 20)
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        fetch(request, token)
    finally:
        ended.set()
        cutter.join()


def test_a_broken_transfer_resumes_where_it_stopped(
    proxy: TcpProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    request = wanted(proxy, "org/omni:v1", tmp_path)
    with pytest.raises(FetchError):
        fetch_through_a_break(proxy, request, None)
    assert 0 < received(tmp_path) < len(WEIGHTS)
    proxy.heal()
    fetch(request, None)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert any("resuming" in record.message for record in caplog.records)


@pytest.fixture
def tokens() -> Iterator[TokenService]:
    service = TokenService()
    yield service
    service.close()


@pytest.mark.parametrize("kind", ["password", "token"])
def test_a_registry_that_asks_for_a_login(
    kind: str, storage: Path, registry: str, proxy: TcpProxy, tokens: TokenService, tmp_path: Path
) -> None:
    with serve_registry(storage, tokens.configure(storage) if kind == "token" else ask_password(storage)) as host:
        proxy.backend = host
        request = wanted(proxy, "org/omni:v1", tmp_path)
        for login in (None, docker_config(proxy.target, "wrong-secret"), docker_config("another.example")):
            with pytest.raises(
                ConfigurationError, match=r"was refused \(401\): the login is missing or wrong"
            ) as caught:
                fetch(request, login)
            assert caught.value.details.field == "model.tokenSecretRef"
            assert "wrong-secret" not in str(caught.value)
        fetch(request, docker_config(proxy.target))
        assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS


def test_a_token_that_ends_within_a_download_is_replaced(
    storage: Path, registry: str, proxy: TcpProxy, tokens: TokenService, tmp_path: Path
) -> None:
    """Tokens of registries are valid for minutes, and a checkpoint takes longer. Here the registry ends within a file,
    and another takes its place, which serves the same files and accepts none of the earlier tokens."""
    request = wanted(proxy, "org/omni:v1", tmp_path)
    with ExitStack() as first:
        proxy.backend = first.enter_context(serve_registry(storage, tokens.configure(storage)))
        with serve_registry(storage, tokens.configure(storage)) as second:

            def replace_registry() -> None:
                tokens.current, proxy.backend = 1, second
                first.close()

            fetch_through_a_break(proxy, request, docker_config(proxy.target), replace_registry)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    assert tokens.current == 1
