"""setup-envtest's archive is used only if it is the known one, and nothing else happens where it cannot be had."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import pytest

from support.controlplane import envtest


def write_archive(path: Path, *names: str) -> str:
    """Writes an archive like the published ones. Returns its checksum."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            member.size = len(name)
            archive.addfile(member, io.BytesIO(name.encode()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the path that the archive's address stands for, on a machine of a known architecture."""
    path = tmp_path / "archive.tar.gz"
    monkeypatch.setattr(envtest, "_URL", path.as_uri())
    monkeypatch.setattr(envtest, "_architecture", lambda: "amd64")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def test_the_known_archive_fills_the_cache(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = write_archive(archive, *envtest.PROGRAMS)
    monkeypatch.setitem(envtest._SHA256, "amd64", digest)
    envtest.download()
    assert {file.name: file.read_text() for file in envtest.folder().iterdir()} == dict(
        zip(envtest.PROGRAMS, envtest.PROGRAMS, strict=True)
    )


@pytest.mark.parametrize("kind", ["absent", "another", "incomplete"])
def test_any_other_archive_is_left_alone(
    archive: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    if kind != "absent":
        digest = write_archive(archive, *envtest.PROGRAMS[: 3 if kind == "another" else 1])
        monkeypatch.setitem(envtest._SHA256, "amd64", digest if kind == "incomplete" else "0" * 64)
    envtest.download()
    assert not envtest.folder().exists()
    assert "not downloaded: etcd, kube-apiserver, kubectl" in capsys.readouterr().err
