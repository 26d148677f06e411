"""The node's cgroup: its child `daemons` has the daemons, its child `kubepods` the pods.

With cgroup v1 there is one in each hierarchy. Every process that the node starts stays in this cgroup, so killing the
cgroup's processes ends the node.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from support.cluster.node.layout import CGROUP

_MOUNT = Path("/sys/fs/cgroup")
_VERSION_2 = (_MOUNT / "cgroup.controllers").exists()


def create() -> None:
    """Makes the node's cgroup in each hierarchy."""
    for root in _roots():
        for folder in (root, root / "daemons"):
            folder.mkdir(exist_ok=True)
    # In v1 a child of cpuset has neither CPUs nor memory nodes until they are written to it.
    cpuset = _MOUNT / "cpuset"
    for folder in (cpuset / CGROUP, cpuset / CGROUP / "daemons") if cpuset.is_dir() and not _VERSION_2 else ():
        for name in ("cpuset.cpus", "cpuset.mems"):
            if not (folder / name).read_text().strip():
                (folder / name).write_text((folder.parent / name).read_text())


def enter_daemons() -> None:
    """Moves the calling process into the daemons' cgroup."""
    for root in _roots():
        (root / "daemons" / "cgroup.procs").write_text("0")


def pod_processes(uid: str) -> dict[int, str]:
    """Returns a pod's processes: process ID -> command line."""
    found = {}
    for folder, _, _ in os.walk(_roots()[0] / "kubepods"):
        if f"pod{uid}" in folder:
            for pid in (Path(folder) / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return found


def end_pods(timeout_s: float = 20.0) -> None:
    """Kills all processes of pods (SIGKILL). Raises TimeoutError if one does not end."""
    _end("kubepods", timeout_s)


def end_daemons(timeout_s: float = 20.0) -> None:
    """Kills all processes in `daemons`, such as containerd's shims. Raises TimeoutError if one does not end."""
    _end("daemons", timeout_s)


def remove() -> None:
    """Removes the empty cgroup, also from hierarchies in which only runc made it."""
    for root in {*_roots(), *_MOUNT.glob(f"*/{CGROUP}")}:
        for folder, _, _ in sorted(os.walk(root), reverse=True):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()


def _end(half: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while pids := set(_processes(half)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes in {half} did not end: {sorted(pids)}")
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
    """Returns the node's cgroup in each hierarchy. The first one contains every process of the node."""
    if _VERSION_2:
        return [_MOUNT / CGROUP]
    names = ("pids", "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "hugetlb", "systemd")
    return [_MOUNT / name / CGROUP for name in names if (_MOUNT / name).is_dir()]
