"""A small tmpfs that a test can fill up. It disappears with the process that holds it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class VolumeNotMountedError(RuntimeError):
    """This machine does not allow the namespaces that a mount needs."""


@contextmanager
def small_volume(place: Path, mib: int) -> Iterator[Path]:
    """Mounts a tmpfs of `mib` MiB on an empty directory, in a new mount namespace.

    Yields the path at which this process finds the tmpfs. Raises VolumeNotMountedError if the mount fails.
    """
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    script = f'mount -t tmpfs -o size={mib}m tmpfs "$0" && echo mounted && exec cat'
    with subprocess.Popen(
        ["unshare", "--mount", *user, "sh", "-c", script, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin
        assert holder.stdout
        assert holder.stderr
        try:
            if holder.stdout.readline() != "mounted\n":
                raise VolumeNotMountedError(holder.stderr.read())
            yield Path(f"/proc/{holder.pid}/root{place}")
        finally:
            holder.stdin.close()


def fill(volume: Path, *, leave: int = 0) -> Path:
    """Fills a volume except for `leave` bytes. Returns the file to remove in order to free the space."""
    ballast = volume / "ballast"
    free = os.statvfs(volume)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    return ballast
