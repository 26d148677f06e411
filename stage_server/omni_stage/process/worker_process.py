"""A worker: a process with one of our modules, which answers jobs over a socket and may be killed at any time."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from typing import Self

from omni_proto.runtime.process import PACKET_BYTES, READY
from omni_stage.errors import OmniStageError


class WorkerProcess:
    """One process, and the parent's end of its socket. Used from one event loop."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._socket = ours

    @classmethod
    def spawn(cls, module: str, *files: int) -> Self:
        """Start a process, without waiting for its imports. It gets the descriptors of its socket and of `files`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            given = (theirs.fileno(), *files)
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-P", "-m", module, *map(str, given)],
                pass_fds=given,
                stdin=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                # yield_cores lowers a session only if the process leads it.
                start_new_session=True,
            )
        ours.setblocking(False)
        return cls(process, ours)

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs. The kernel may end an idle process, for example when memory runs out."""
        return self._process.poll() is None

    async def wait_ready(self, named: str, within_s: float) -> None:
        """Wait until the process can take jobs, for `within_s` seconds. If it cannot, or the caller leaves, kill it.

        `named`: the process, in errors. Raises OmniStageError if it ends or is too slow.
        """
        try:
            async with asyncio.timeout(within_s):
                greeting = await self.receive()
        except TimeoutError as error:
            self.kill()
            raise OmniStageError(f"{named} did not start within {within_s:g} s") from error
        except BaseException:
            self.kill()
            raise
        if greeting != READY:
            self.kill()
            raise OmniStageError(f"{named} ended while it started ({self._process.returncode})")

    async def receive(self) -> bytes:
        """Returns the next packet from the process; empty if the process ended."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, PACKET_BYTES)
        except ConnectionResetError:
            return b""

    def kill(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        # Close after the callbacks of a read that was just cancelled, because they still use the socket.
        asyncio.get_running_loop().call_soon(self._socket.close)
        # Wait in a thread, because the kernel needs a while to free gigabytes.
        threading.Thread(target=self._process.wait, name="worker-reaper", daemon=True).start()
