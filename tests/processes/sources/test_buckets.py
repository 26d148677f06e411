"""`fetch` from buckets of real stores: broken transfers, wrong credentials, objects that change, names, sizes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_stage.errors import ConfigurationError
from omni_stage.fetch import buckets
from omni_stage.fetch.checkpoint import FetchRequest, fetch, open_source
from omni_stage.fetch.download import FetchError, download_file
from support.machine.tcp_proxy import TcpProxy, Toxics
from support.peers.object_stores import BUCKET, STORES, ObjectStore, serve
from support.processes.polling import wait_until

pytestmark = pytest.mark.full  # installs the stores

WEIGHTS = bytes(range(256)) * (6 << 12)
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "README.md": b"not needed", "empty.txt": b""}


@pytest.fixture(scope="module", params=STORES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with serve(request.param, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
def proxy(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[TcpProxy]:
    """The network between the pod and the store."""
    with TcpProxy(f"127.0.0.1:{store.port}") as network:
        for name, value in store.environment(network.port).items():
            monkeypatch.setenv(name, value)
        yield network


@pytest.fixture
def fill(store: ObjectStore, request: pytest.FixtureRequest) -> Callable[..., str]:
    """A function that puts files into a folder of this test. Returns the folder's uri."""
    folder = f"omni/{request.node.originalname}"

    def put(**changes: bytes) -> str:
        for name, content in (FILES | {name.replace("__", "."): data for name, data in changes.items()}).items():
            store.put(f"{folder}/{name}", content)
        store.put(f"{folder}-2/config.json", b"of another checkpoint")
        return f"{store.scheme}://{BUCKET}/{folder}"

    return put


def wanted(uri: str, dest: Path, component: str = "", commit_file: Path | None = None) -> FetchRequest:
    return FetchRequest(uri, "main", dest, component, commit_file)


def test_gets_what_engines_read_and_a_later_run_needs_no_network(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path
) -> None:
    request = wanted(fill(), tmp_path)
    version = fetch(request, store.right)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name[0] != "."}
    assert found == {name: data for name, data in FILES.items() if name != "README.md"}
    proxy.toxics = Toxics(refuse=True)
    proxy.cut()
    assert fetch(request, store.right) == version


def test_a_broken_transfer_resumes_where_it_stopped(
    store: ObjectStore,
    proxy: TcpProxy,
    fill: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(buckets, "RANGE_BYTES", 1 << 20)
    request = wanted(fill(), tmp_path)

    ended = threading.Event()

    def part() -> int:
        return max((path.stat().st_size for path in tmp_path.rglob("model.safetensors.*.part")), default=0)

    def cut() -> None:
        wait_until(lambda: part() > 1 << 20 or ended.is_set())
        proxy.toxics = Toxics(refuse=True)
        proxy.cut()

    proxy.toxics = Toxics(bytes_per_s=8 << 20)
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        with pytest.raises(FetchError, match="cannot be read") as caught:
            fetch(request, store.right)
    finally:
        ended.set()
        cutter.join()
    assert caught.value.details.field == "model.uri"
    received = part()
    assert 1 << 20 < received < len(WEIGHTS)
    proxy.heal()
    fetch(request, store.right)
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS
    (resumed,) = [record for record in caplog.records if "resuming" in record.message]
    assert resumed.at == received  # type: ignore[attr-defined]


def test_wrong_credentials_are_reported_and_not_shown(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path
) -> None:
    uri = fill()
    for wrong in store.wrong:
        with pytest.raises(ConfigurationError, match="credentials are wrong, have expired, or may") as caught:
            fetch(wanted(uri, tmp_path), wrong)
        assert caught.value.details.field == "model.tokenSecretRef"
        assert not any(part in str(caught.value) for part in ("wwww", "sig=", "PRIVATE"))


def test_an_object_that_changes_after_the_list_is_not_mixed_with_the_old_one(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path
) -> None:
    request = wanted(fill(), tmp_path)
    source = open_source(request, store.right)
    version, sizes = source.look_up(None)
    fill(model__safetensors=WEIGHTS[::-1])
    file = source.find(version, "model.safetensors", sizes["model.safetensors"])
    with pytest.raises(Exception) as caught:  # noqa: PT011 - a client's error, which the source explains
        download_file(tmp_path, file, source)
    error = caught.value if isinstance(caught.value, FetchError) else source.explain(caught.value, None)
    assert "was changed while it was downloaded" in str(error)
    assert fetch(request, store.right) != version
    assert (tmp_path / "model.safetensors").read_bytes() == WEIGHTS[::-1]


def test_stages_that_share_a_cache_do_not_mix_two_versions(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path
) -> None:
    uri, pin = fill(), tmp_path / "commit.json"
    first = wanted(uri, tmp_path / "a", "generic/llm", pin)
    version = fetch(first, store.right)
    assert fetch(wanted(uri, tmp_path / "b", "", pin), store.right) == version
    fill(config__json=b'{"new": 1}')
    assert fetch(first, store.right) == version
    with pytest.raises(ConfigurationError, match="must not mix two versions"):
        fetch(wanted(uri, tmp_path / "c", "", pin), store.right)


def test_downloaders_of_one_cache_take_turns(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path
) -> None:
    request = wanted(fill(), tmp_path / "m", "", tmp_path / "commit.json")
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: fetch(request, store.right), range(4)))) == 1
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == WEIGHTS
    assert not list((tmp_path / "m").rglob("*.part"))


def test_folders_without_a_checkpoint_and_too_many_objects_are_refused(
    store: ObjectStore, proxy: TcpProxy, fill: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = fill()
    with pytest.raises(ConfigurationError, match="there is no such folder"):
        fetch(wanted(f"{uri}/none", tmp_path), store.right)
    if store.scheme != "gs":  # fake-gcs-server answers 500, unlike Google
        with pytest.raises(ConfigurationError, match="does not exist"):
            fetch(wanted(f"{store.scheme}://no-such-bucket/x", tmp_path), store.right)
    monkeypatch.setattr(buckets, "MAX_OBJECTS", 3)
    with pytest.raises(ConfigurationError, match="more than 3 objects"):
        fetch(wanted(uri, tmp_path), store.right)


def test_keys_that_climb_are_refused(store: ObjectStore, proxy: TcpProxy, tmp_path: Path) -> None:
    if store.scheme != "s3":
        return
    with pytest.raises(ConfigurationError, match="whose name is no path"):
        fetch(wanted(f"s3://{BUCKET}/climbs", tmp_path / "m"), store.right)
    assert not list(tmp_path.rglob("evil.json"))
