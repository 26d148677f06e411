"""Starts, asks and ends a process that decodes media (omni_stage/media/worker.py)."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any, Final

from omni_stage.errors import InvalidMediaError, OmniStageError, PrepareTimeoutError
from omni_stage.media.worker import PACKET_BYTES, READY
from omni_stage.process.background import yield_cores

START_TIMEOUT_S: Final = 60.0

_log = logging.getLogger(__name__)


class DecoderProcess:
    """One process, and the parent's end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._socket = ours

    @classmethod
    async def start(cls) -> DecoderProcess:
        """Start a process and wait until it can decode. Raises OmniStageError if it ends or is too slow."""
        process, ours = spawn_decoder()
        ours.setblocking(False)
        worker = cls(process, ours)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                greeting = await worker._receive()
        except TimeoutError as error:
            worker.kill()
            raise OmniStageError(f"a process that decodes media did not start within {START_TIMEOUT_S:g} s") from error
        except BaseException:
            worker.kill()
            raise
        if greeting != READY:
            worker.kill()
            raise OmniStageError(f"a process that decodes media ended while it started ({process.returncode})")
        # spawn_decoder has called this before. But the kernel limits how often sessions may be lowered, and may have
        # refused.
        yield_cores(process.pid)
        return worker

    @property
    def is_alive(self) -> bool:
        """Whether the process still runs. The kernel may end an idle process, for example when memory runs out."""
        return self._process.poll() is None

    async def ask(self, message: bytes, descriptor: int, timeout_s: float) -> dict[str, Any]:
        """Send a job and its shared memory's descriptor. Returns the answer; see `run_job` of the worker.

        Raises PrepareTimeoutError after timeout_s seconds, and InvalidMediaError if the process ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(BrokenPipeError):
                    socket.send_fds(self._socket, [message], [descriptor])
                answer = await self._receive()
        except TimeoutError as error:
            raise PrepareTimeoutError(
                f"the request's media were not decoded within {timeout_s:g} s (timeouts.prepare); send simpler ones",
                field="start.chat.messages",
                limit=f"{timeout_s:g} s",
            ) from error
        if not answer:
            _log.warning("a process that decoded media ended: its request is refused")
            raise InvalidMediaError("the request's media cannot be decoded: the decoder ended")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    async def settles(self, within_s: float) -> bool:
        """Returns whether the worker answers a cancelled job within `within_s` seconds, so that it can take another."""
        try:
            async with asyncio.timeout(within_s):
                return bool(await self._receive())
        except TimeoutError:
            return False

    async def _receive(self) -> bytes:
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
        threading.Thread(target=self._process.wait, name="media-reaper", daemon=True).start()


def spawn_decoder() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process. Returns the process, and the parent's end of its socket, without waiting for its imports."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "omni_stage.media.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            # yield_cores lowers a session only if the process leads it.
            start_new_session=True,
        )
    # Lower its priority from the start: importing the decoders takes 0.2 s, and clients can cause such starts by
    # disconnecting.
    yield_cores(process.pid)
    return process, ours
