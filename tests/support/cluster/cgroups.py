"""The node's cgroup, in every hierarchy of version 1 or in version 2: daemons in one half, pods in the other.

Whatever the node starts stays in it: ending the node is ending what lies here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from support.cluster.layout import CGROUP

_MOUNT = Path("/sys/fs/cgroup")
_VERSION_2 = (_MOUNT / "cgroup.controllers").exists()


def create() -> None:
    """Make the node's cgroup in each hierarchy."""
    for root in _roots():
        for folder in (root, root / "daemons"):
            folder.mkdir(exist_ok=True)
    # A child of cpuset has no CPUs and no memory until it is told.
    cpuset = _MOUNT / "cpuset"
    for folder in (cpuset / CGROUP, cpuset / CGROUP / "daemons") if cpuset.is_dir() and not _VERSION_2 else ():
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (folder / name).read_text().strip():
                (folder / name).write_text((folder.parent / name).read_text())


def enter_daemons() -> None:
    """Move the calling process into the cgroup of the daemons."""
    for root in _roots():
        (root / "daemons" / "cgroup.procs").write_text("0")


def pod_processes(uid: str) -> dict[int, str]:
    """Returns the processes of a pod: id -> command line."""
    found = {}
    for folder, _, _ in os.walk(_roots()[0] / "kubepods"):
        if f"pod{uid}" in folder:
            for pid in (Path(folder) / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return found


def end_pods(timeout_s: float = 20.0) -> None:
    """SIGKILL what runs in pods."""
    _end("kubepods", timeout_s)


def end_daemons(timeout_s: float = 20.0) -> None:
    """SIGKILL what is left of the daemons, such as containerd's shims."""
    _end("daemons", timeout_s)


def remove() -> None:
    """Remove the empty cgroup, where runc made it beside version 1 as well."""
    for root in {*_roots(), *_MOUNT.glob(f"*/{CGROUP}")}:
        for folder, _, _ in sorted(os.walk(root), reverse=True):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def _end(half: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while pids := set(_processes(half)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes that do not end in {half}: {sorted(pids)}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _processes(half: str) -> Iterator[int]:
    root = _roots()[0] / half
    for folder, _, _ in os.walk(root):
        with contextlib.suppress(OSError):
            yield from map(int, (Path(folder) / "cgroup.procs").read_text().split())


def _roots() -> list[Path]:
    """Returns the node's cgroup in each hierarchy; the first is one that every process is in."""
    if _VERSION_2:
        return [_MOUNT / CGROUP]
    names = ("pids", "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "hugetlb", "systemd")
    return [_MOUNT / name / CGROUP for name in names if (_MOUNT / name).is_dir()]
