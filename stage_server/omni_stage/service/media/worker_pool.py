"""Decodes media in separate processes, so that a hostile image harms only its own request, and one core for a few
seconds.

encoded bytes -> shared memory -> a worker (omni_stage/decoding/worker.py) -> shared memory -> pixels and samples

A process is killed if its job takes too long, or if the caller cancels and the job does not end within LEFT_S seconds.
A later job then gets a new process. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import mmap
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from omni_stage.errors import DrainingError, InvalidMediaError, OmniStageError, PrepareTimeoutError, in_field
from omni_stage.models.component import MediaPart
from omni_stage.process.background import yield_cores
from omni_stage.process.worker_process import WorkerProcess
from omni_stage.service.media.decode_job import DecodeJob
from omni_stage.service.media.decoded import DecodedMedia, content_key, named
from omni_stage.service.media.planning import only_field
from omni_stage.service.media.slots import MediaRules, MediaSlot

START_TIMEOUT_S: Final = 60.0
WORKERS: Final = 2
LEFT_S: Final = 0.25
"""Seconds in which a worker may finish a job that its caller has cancelled."""

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class DecoderProcess(WorkerProcess):
    """A process that decodes media."""

    @classmethod
    def begin(cls) -> DecoderProcess:
        """Start a process, without waiting for its imports."""
        worker = cls.spawn("omni_stage.decoding.worker")
        # Lower its priority from the start: importing the decoders takes 0.2 s, and clients can cause such starts by
        # disconnecting.
        yield_cores(worker._process.pid)
        return worker

    @classmethod
    async def start(cls) -> DecoderProcess:
        """Start a process and wait until it can decode. Raises OmniStageError if it ends or is too slow."""
        worker = cls.begin()
        await worker.wait_ready("a process that decodes media", START_TIMEOUT_S)
        # `begin` has called this before. But the kernel limits how often sessions may be lowered, and may have refused.
        yield_cores(worker._process.pid)
        return worker

    async def ask(self, message: bytes, descriptor: int, timeout_s: float) -> dict[str, Any]:
        """Send a job and its shared memory's descriptor. Returns the answer; see `run_job` of the worker.

        Raises PrepareTimeoutError after timeout_s seconds, and InvalidMediaError if the process ended.
        """
        try:
            async with asyncio.timeout(timeout_s):
                with suppress(BrokenPipeError):
                    socket.send_fds(self._socket, [message], [descriptor])
                answer = await self.receive()
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
                return bool(await self.receive())
        except TimeoutError:
            return False


class MediaPool:
    """Decodes in at most `workers` processes, which start on first use and are kept. Keeps `kept_bytes` of results."""

    def __init__(self, workers: int = WORKERS, kept_bytes: int = 0) -> None:
        self._kept = DecodedMedia(kept_bytes)
        self._places = asyncio.Semaphore(workers)
        self._idle: list[DecoderProcess] = []
        self._busy: set[DecoderProcess] = set()
        self._start: asyncio.Task[None] | None = None
        """Starts a process. All jobs that need one wait for this task, and it continues if their clients disconnect."""
        # Separate threads copy to and from shared memory, so that copies delay neither the event loop nor the threads
        # that prepare text.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="media-copy")
        self._closed = False

    async def decode(
        self, slots: Sequence[MediaSlot], rules: MediaRules, timeout_s: float, salt: str = ""
    ) -> list[MediaPart]:
        """Returns the decoded media of a request: images and frames as RGB, audio as mono at the model's rate.

        Those that were decoded before, for the same cache salt, may be the same objects as then. Raises
        InvalidMediaError, PrepareTimeoutError if a worker took longer than timeout_s, DrainingError, and OmniStageError
        if no worker starts.
        """
        if not self._kept.limit:
            return await self._decode(slots, rules, timeout_s)
        keys = await self._in_thread(lambda: [content_key(slot, rules, salt) for slot in slots])
        found = [self._kept.get(key) for key in keys]
        new = [slot for slot, part in zip(slots, found, strict=True) if part is None]
        decoded = iter(await self._decode(new, rules, timeout_s) if new else ())
        parts = [part or named(next(decoded), key.hex()) for part, key in zip(found, keys, strict=True)]
        for key, part in zip(keys, parts, strict=True):
            self._kept.put(key, part)
        return parts

    async def _decode(self, slots: Sequence[MediaSlot], rules: MediaRules, timeout_s: float) -> list[MediaPart]:
        async with self._places:
            job = DecodeJob.plan(slots, rules, timeout_s)
            descriptor = os.memfd_create("media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, job.shared_bytes)
            # A compromised worker must not shrink the memory that is mapped here.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            shared = mmap.mmap(descriptor, job.shared_bytes)
            try:
                await self._in_thread(job.fill, shared)
                with in_field(only_field(slots)):
                    sizes = await self._run(job, descriptor, timeout_s)
                    return await self._in_thread(job.take, shared, sizes)
            finally:
                await self._in_thread(_release, shared, descriptor)

    async def warm(self) -> None:
        """Start a process now if there is none, so that the next request need not wait for it."""
        if self._idle or self._busy or self._closed:
            return
        with suppress(OmniStageError):  # logged by _log_failure
            await asyncio.shield(self._start_one())

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._closed = True
        for worker in (*self._idle, *self._busy):
            worker.kill()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, job: DecodeJob, descriptor: int, timeout_s: float) -> list[tuple[int, int, float]]:
        """Run a job in a worker. Returns the sizes of the decoded media; see `DecodeJob.read`.

        The worker is killed if it gives no answer, or if the caller cancels and the worker does not answer within
        LEFT_S seconds.
        """
        worker = await self._take()
        settled = False
        try:
            answer = await worker.ask(job.message, descriptor, timeout_s)
            settled = True
        except asyncio.CancelledError:
            # Most jobs end sooner than a new process would start.
            settled = await worker.settles(LEFT_S)
            raise
        finally:
            self._busy.discard(worker)
            if settled and not self._closed:
                self._idle.append(worker)
            else:
                worker.kill()
                if not (self._idle or self._busy or self._closed):
                    self._start_one()
        return job.read(answer)

    async def _take(self) -> DecoderProcess:
        """Returns an idle or new worker, marked as busy."""
        while True:
            while self._idle:
                worker = self._idle.pop()
                if worker.is_alive:
                    self._busy.add(worker)
                    return worker
                _log.warning("an idle process that decodes media ended; another one replaces it")
                worker.kill()
            if self._closed:
                raise DrainingError("the stage server is shutting down")
            await asyncio.shield(self._start_one())

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        """Returns the result of a function that copies or frees memory. In the event loop, the function would block for
        0.25 ms per MiB.

        A cancelled caller still waits until the function ends, because the memory is in use until then.
        """
        if self._closed:
            return function(*args)
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            await asyncio.wait({future})
            if not future.cancelled():
                # Retrieve the exception, so that asyncio does not log it. The caller's cancellation replaces it.
                future.exception()
            raise
        return future.result()

    def _start_one(self) -> asyncio.Task[None]:
        """Returns the task that adds an idle process. Starts it unless it is running already."""
        if self._start is None or self._start.done():
            self._start = asyncio.get_running_loop().create_task(self._add_process())
            self._start.add_done_callback(_log_failure)
        return self._start

    async def _add_process(self) -> None:
        worker = await DecoderProcess.start()
        if self._closed:
            worker.kill()
        else:
            self._idle.append(worker)


def _log_failure(start: asyncio.Task[None]) -> None:
    if not start.cancelled() and (error := start.exception()) is not None:
        _log.error("no process that decodes media can be started", exc_info=error)


def _release(shared: mmap.mmap, descriptor: int) -> None:
    """Free a job's memory."""
    os.close(descriptor)
    # The traceback of an error may still refer to the memory; then the memory is freed with the traceback.
    with suppress(BufferError):
        shared.close()
