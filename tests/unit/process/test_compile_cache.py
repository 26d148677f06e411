"""Compiled code that pods share: what one stage saved, another restores whole, and nothing else."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from omni_proto.pod_contract import COMPILE_CACHE_VARIABLE, COMPILED_FOLDERS
from omni_proto.stage_config import ModelSource, StageConfig
from omni_stage.process import compile_cache
from omni_stage.process.compile_cache import SharedCompileCache, find_fingerprint, open_compile_cache

CONFIG = StageConfig(pipeline="p", stage="s", component="generic/llm", model=ModelSource(path="/models/m"))
MINE = "0123456789abcdef"
FILES = {"vllm/a/rank_0/graph.py": b"x" * 70_000, "triton/K/fused.cubin": b"\x00\x01", "inductor/ab/lib.so": b"ELF"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The shared volume."""
    folder = tmp_path / "shared"
    folder.mkdir()
    return folder


def _pod(shared: Path, root: Path, fingerprint: str = MINE) -> SharedCompileCache:
    return SharedCompileCache(shared, fingerprint, {name: root / name for name in COMPILED_FOLDERS.values()})


def _fill(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _save(pod: SharedCompileCache) -> Path | None:
    """In a thread of its own, as a stage server does: the thread keeps the low priority that it gives itself."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(pod.save).result()


def _content(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _archive(shared: Path, *members: tuple[tarfile.TarInfo, bytes], fingerprint: str = MINE) -> Path:
    """Writes an archive whose digest is right, as somebody with access to the volume could."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    path = shared / f"{fingerprint}.{hashlib.sha256(stream.getvalue()).hexdigest()}.tar"
    path.write_bytes(stream.getvalue())
    return path


def test_a_second_pod_restores_what_the_first_saved(shared: Path, tmp_path: Path) -> None:
    """Content and the right to execute; locks and links stay behind. Restored code is not saved again."""
    first, second = tmp_path / "first", tmp_path / "second"
    _fill(first, {**FILES, "vllm/a/x.lock": b"1", "triton/K/y.tmp": b"2"})
    (first / "inductor/ab/lib.so").chmod(0o755)
    (first / "inductor/link").symlink_to("/etc/passwd")
    pod = _pod(shared, first)
    assert pod.restore() == 0
    assert _save(pod) is not None
    other = _pod(shared, second)
    assert other.restore() == len(FILES)
    assert _content(second) == FILES
    assert os.access(second / "inductor/ab/lib.so", os.X_OK)
    assert _save(other) is None
    assert len(list(shared.iterdir())) == 1


def test_a_pod_that_compiled_more_replaces_the_archive(shared: Path, tmp_path: Path) -> None:
    """So the archive grows until nothing is compiled any more; older ones of this stage are deleted."""
    _fill(tmp_path / "a", FILES)
    _save(_pod(shared, tmp_path / "a"))
    more = _pod(shared, tmp_path / "b")
    more.restore()
    _fill(tmp_path / "b", {"triton/new": b"n"})
    assert _save(more) is not None
    last = _pod(shared, tmp_path / "c")
    assert last.restore() == len(FILES) + 1
    assert len(list(shared.iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "longer"])
def test_a_damaged_archive_is_not_used(shared: Path, tmp_path: Path, damage: str) -> None:
    """And the stage that compiles in its place writes a sound one."""
    _fill(tmp_path / "a", FILES)
    archive = _save(_pod(shared, tmp_path / "a"))
    assert archive is not None
    content = bytearray(archive.read_bytes())
    content[1000] ^= damage == "flipped"
    archive.write_bytes({"cut": content[:-600], "empty": b"", "longer": content + b"1"}.get(damage, bytes(content)))
    pod = _pod(shared, tmp_path / "b")
    assert pod.restore() == 0
    assert not (tmp_path / "b").exists()
    _fill(tmp_path / "b", FILES)
    assert _save(pod) is not None
    assert _pod(shared, tmp_path / "c").restore() == len(FILES)


@pytest.mark.parametrize("name", ["../evil", "vllm/../../evil", "/etc/evil", "other/file", "vllm", "vllm/"])
def test_an_archive_writes_only_into_the_pods_folders(shared: Path, tmp_path: Path, name: str) -> None:
    """Even one with a right digest."""
    _archive(shared, (tarfile.TarInfo(name), b"evil"))
    assert _pod(shared, tmp_path / "pod").restore() == 0
    assert "evil" not in {path.name for path in tmp_path.rglob("*")}


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
def test_an_archive_holds_only_regular_files(shared: Path, tmp_path: Path, kind: bytes) -> None:
    """A link could lead a later file elsewhere."""
    info = tarfile.TarInfo("vllm/x")
    info.type, info.linkname = kind, "/etc"
    _archive(shared, (info, b""))
    assert _pod(shared, tmp_path / "pod").restore() == 0


def test_other_files_on_the_volume_are_left_alone(shared: Path, tmp_path: Path) -> None:
    """A foreign file, a folder, a link that has an archive's name, and another stage's archive."""
    _fill(shared, {"notes.txt": b"mine", "folder/x": b"y"})
    (shared / f"{MINE}.{'0' * 64}.tar").symlink_to("/etc/passwd")
    other = _archive(shared, (tarfile.TarInfo("vllm/x"), b"1"), fingerprint="f" * 16)
    pod = _pod(shared, tmp_path / "pod")
    assert pod.restore() == 0
    _fill(tmp_path / "pod", FILES)
    assert _save(pod) is not None
    assert (shared / "notes.txt").exists()
    assert (shared / "folder/x").exists()
    assert other.exists()


def test_what_nobody_uses_is_deleted(shared: Path, tmp_path: Path) -> None:
    """Archives of stages that are gone, and what a killed writer left."""
    old = _archive(shared, (tarfile.TarInfo("vllm/x"), b"1"), fingerprint="e" * 16)
    left = shared / ".unfinished-abc"
    left.write_bytes(b"half")
    for path, age in ((old, compile_cache.UNUSED_S), (left, compile_cache.STALE_S)):
        time = path.stat().st_mtime - age - 60
        os.utime(path, (time, time))
    _fill(tmp_path / "pod", FILES)
    assert _save(_pod(shared, tmp_path / "pod")) is not None
    assert not old.exists()
    assert not left.exists()


@pytest.mark.parametrize("_", range(30))
def test_pods_that_save_together_leave_one_whole_archive(shared: Path, tmp_path: Path, _: int) -> None:
    """Replicas become ready at the same time, and none deletes the newest archive."""
    pods = []
    for number in range(6):
        _fill(tmp_path / str(number), {**FILES, f"triton/{number}": b"n"})
        pods.append(_pod(shared, tmp_path / str(number)))
    threads = [threading.Thread(target=pod.save) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert _pod(shared, tmp_path / "last").restore() == len(FILES) + 1


def test_a_file_that_was_half_restored_is_whole_after_the_restart(shared: Path, tmp_path: Path) -> None:
    """A pod's folders outlive its container."""
    _fill(tmp_path / "a", FILES)
    _save(_pod(shared, tmp_path / "a"))
    _fill(tmp_path / "b", {"vllm/a/rank_0/.graph.py.tmp": b"x" * 10})
    _pod(shared, tmp_path / "b").restore()
    assert (tmp_path / "b/vllm/a/rank_0/graph.py").read_bytes() == FILES["vllm/a/rank_0/graph.py"]


@pytest.mark.parametrize("bound", ["MAX_ARCHIVE_BYTES", "MAX_FILES"])
def test_too_much_is_neither_written_nor_read(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    """A volume is not filled, nor a pod's folders."""
    _fill(tmp_path / "a", FILES)
    pod = _pod(shared, tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(compile_cache, bound, 2)
        assert _save(pod) is None
    assert _save(pod) is not None
    monkeypatch.setattr(compile_cache, bound, 2)
    assert _pod(shared, tmp_path / "b").restore() == 0


def test_a_volume_that_is_missing_is_no_error(tmp_path: Path) -> None:
    """The stage compiles as without it."""
    _fill(tmp_path / "pod", FILES)
    pod = _pod(tmp_path / "missing", tmp_path / "pod")
    assert pod.restore() == 0
    assert _save(pod) is None


def test_the_cache_is_opened_where_the_environment_names_all_it_needs(tmp_path: Path) -> None:
    """Not in a local run, whose caches outlive the process anyway."""
    folders = {variable: str(tmp_path / name) for variable, name in COMPILED_FOLDERS.items()}
    assert open_compile_cache(CONFIG, {}) is None
    assert open_compile_cache(CONFIG, {COMPILE_CACHE_VARIABLE: "/x"}) is None
    cache = open_compile_cache(CONFIG, {COMPILE_CACHE_VARIABLE: "/x", **folders})
    assert cache is not None
    assert set(cache.folders) == set(COMPILED_FOLDERS.values())


def test_the_fingerprint_covers_processors_and_configuration(tmp_path: Path) -> None:
    """Not the stage's name or ports: they do not change what is compiled."""
    cpu, gpu = tmp_path / "cpuinfo", tmp_path / "nvidia"
    _fill(gpu, {"gpus/0/information": b"Model: \t NVIDIA H200\nIRQ: 1\n", "version": b"580.1"})
    cpu.write_text("flags : avx2\ncpu MHz : 1\n")

    def find(config: StageConfig = CONFIG) -> str:
        return find_fingerprint(config, cpu, gpu)

    first = find()
    assert find(CONFIG.model_copy(update={"stage": "other"})) == first
    assert find(CONFIG.model_copy(update={"tensor_parallel_size": 2})) != first
    cpu.write_text("flags : avx2\ncpu MHz : 2\n")
    assert find() == first
    cpu.write_text("flags : avx512\n")
    assert find() != first
    cpu.write_text("flags : avx2\n")
    assert find() == first
    _fill(gpu, {"gpus/0/information": b"Model: NVIDIA H100\nIRQ: 1\n"})
    assert find() != first
