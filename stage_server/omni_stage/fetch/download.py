"""Downloads one file of a checkpoint. A download resumes at the byte where it stopped, and is verified.

The hub's own client (huggingface_hub 2.4) starts a file again in every process and leaves the partial file of a killed
process behind. With shards of 5 GB that costs hours and fills the volume. Here the name of a partial file is derived
from the file's ETag, so any process can resume it:

    PARTS/NAME.HASH.part      the bytes received so far, locked by one process; HASH: first 12 digits of sha256(ETag)
    NAME                      the complete file, renamed once its size and digest match the source's
    PARTS/NAME.etag           the ETag of NAME's content

Several pods, also of several pipelines, may therefore share a cache.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, Protocol

from omni_stage.errors import OmniStageError

PARTS: Final = ".omni-parts"
"""Folder in the checkpoint's directory; engines do not read it."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LARGER: Final = "give model.cache a larger claim, or the nodes larger disks"
_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_GIT_SHA1: Final = re.compile(r"[0-9a-f]{40}\Z")

_log = logging.getLogger(__name__)


class FetchError(OmniStageError):
    """A checkpoint or file could not be fetched; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of one version of a checkpoint, as its source describes it."""

    name: str
    """Path in the checkpoint."""
    url: str
    """Where the source finds it: an address, perhaps a signed one elsewhere, or the key of an object."""
    etag: str
    """Names the content. A digest in hex is checked: sha256, git's sha1 of a blob, or sha1."""
    size: int


class Source(Protocol):
    """Where a checkpoint comes from. Methods raise FetchError, ConfigurationError, or errors that `explain` knows."""

    @property
    def identity(self) -> tuple[str, str]:
        """The repository, also in messages, and a folder of it, or an empty text."""

    def look_up(self, pinned: str | None) -> tuple[str, dict[str, int | None]]:
        """Returns the version (40 or 64 hex digits) and the size in bytes of each file (None if not stated).

        With `pinned`, a version that an earlier look-up returned, it returns that one if the source still has it.
        """

    def find(self, version: str, name: str, size: int | None) -> RemoteFile:
        """Returns the description of a file, whose size look_up returned."""

    def receive(self, file: RemoteFile, stream: BinaryIO, have: int) -> None:
        """Writes the file's content from byte `have` on to the stream, which stands there."""

    def explain(self, error: Exception, pinned: str | None) -> OmniStageError | None:
        """Returns the error of the source's client as an OmniStageError, or None."""


def has_file(directory: Path, file: RemoteFile) -> bool:
    """Returns whether the directory holds the complete file with exactly this content."""
    try:
        return _note_path(directory, file).read_text(encoding="ascii") == file.etag and (
            (directory / file.name).stat().st_size == file.size
        )
    except OSError:
        return False


def download_file(directory: Path, file: RemoteFile, source: Source) -> None:
    """Fetch a file, or the part of it that is still missing, into the directory.

    Raises FetchError if the size or digest differs from what the source states. Also raises errors of the source and of
    the disk.
    """
    target, part, note = directory / safe_path(file.name), part_path(directory, file), _note_path(directory, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    while not has_file(directory, file):
        with _locked(part) as stream:
            if stream is None:
                # Another process held the lock until now, and has finished the file; check the result.
                continue
            if has_file(directory, file):
                # Another process finished before this one opened the partial file, so that file is new and empty.
                part.unlink(missing_ok=True)
                return
            _receive(stream, file, source)
            if not _is_intact(part, file):
                part.unlink(missing_ok=True)
                raise FetchError(f"{file.name} arrived damaged; the next attempt downloads it again", field="model.uri")
            # With this order, `has_file` becomes true only after the rename, and is never true for other content.
            target.unlink(missing_ok=True)
            note.write_text(file.etag, encoding="ascii")
            part.replace(target)
        _log.info("fetched a file", extra={"file": file.name, "bytes": file.size})


def part_path(directory: Path, file: RemoteFile) -> Path:
    """Returns the path of the partial file."""
    note = _note_path(directory, file)
    return note.with_name(f"{note.stem}.{hashlib.sha256(file.etag.encode()).hexdigest()[:12]}.part")


def missing_bytes(directory: Path, files: list[RemoteFile]) -> int:
    """Returns how many bytes are not downloaded yet."""
    missing = 0
    for file in files:
        if not has_file(directory, file):
            found = _stat(part_path(directory, file))
            missing += max(0, file.size - (found.st_size if found else 0))
    return missing


def check_room(directory: Path, files: list[RemoteFile]) -> None:
    """Raises FetchError if the volume has no space for the missing bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    needed, free = missing_bytes(directory, files), shutil.disk_usage(directory).free
    if needed > free:
        raise FetchError(
            f"the download needs {needed >> 20} MiB more, and the volume of {directory} has {free >> 20} MiB; {LARGER}",
            field="model.cache",
        )


def safe_path(name: str) -> PurePosixPath:
    """Returns a repository file's relative path. Raises FetchError if the path leads out of the directory."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise FetchError(f"the repository has a file named {name!r}", field="model.uri")
    return path


def _receive(stream: BinaryIO, file: RemoteFile, source: Source) -> None:
    have = stream.seek(0, os.SEEK_END)
    if have > file.size:
        stream.truncate(0)
        have = stream.seek(0)
    if have:
        _log.info("resuming a download", extra={"file": file.name, "at": have, "bytes": file.size})
    source.receive(file, stream, have)
    stream.flush()
    os.fsync(stream.fileno())


def _is_intact(part: Path, file: RemoteFile) -> bool:
    if part.stat().st_size != file.size:
        return False
    if _SHA256.match(file.etag):
        digests = [hashlib.sha256()]
    elif _GIT_SHA1.match(file.etag):
        # The hub's ETag is git's hash of a header and the content. Artifactory's ETag is the hash of the content alone.
        digests = [hashlib.sha1(head, usedforsecurity=False) for head in (b"blob %d\0" % file.size, b"")]
    else:
        return True
    with part.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            for digest in digests:
                digest.update(chunk)
    return any(digest.hexdigest() == file.etag for digest in digests)


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO | None]:
    """Yields the partial file, open for appending and locked; None if another process finished it meanwhile."""
    with part.open("ab") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        found = _stat(part)
        yield stream if found and os.path.samestat(found, os.fstat(stream.fileno())) else None


def _stat(path: Path) -> os.stat_result | None:
    """Returns None if there is no such file: another process may rename the file at any time."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _note_path(directory: Path, file: RemoteFile) -> Path:
    path = safe_path(file.name)
    return directory / PARTS / path.parent / f"{path.name}.etag"
