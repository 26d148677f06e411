"""Processes that decode media, so that a hostile image costs its own request and a core for a few seconds, no more.

encoded bytes -> shared memory -> a worker (omni_stage/media/worker.py) -> shared memory -> pixels and samples

Text never comes here. A job that takes too long, or whose caller left, is ended with its process; the next one gets a
fresh process. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import mmap
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from PIL import Image

from omni_proto.media_header import BYTES_PER_SAMPLE, AudioHeader, ImageHeader
from omni_stage.errors import InvalidMediaError, OmniStageError, PrepareTimeoutError
from omni_stage.media.decode import WORK_BYTES_PER_PIXEL
from omni_stage.media.worker import PACKET_BYTES, READY
from omni_stage.models.component import AudioPart, ImagePart
from omni_stage.service.media.planning import MediaRules, MediaSlot, audio_samples

WORKERS: Final = 2
START_TIMEOUT_S: Final = 60.0
_WORK_SLACK_BYTES: Final = 64 << 20
"""Of a worker beside images and audio: decoders' tables, blocks, the resampler."""
_MAX_ERROR_CHARS: Final = 200

_log = logging.getLogger(__name__)


class MediaPool:
    """Decodes on at most `workers` processes; they start when they are first needed, and stay."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._places = asyncio.Semaphore(workers)
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._starting: set[asyncio.Task[None]] = set()
        # Copies to and from shared memory: not on the loop, and not on the threads that texts are prepared on.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="media-copy")
        self._closed = False

    async def decode(
        self, slots: Sequence[MediaSlot], rules: MediaRules, timeout_s: float
    ) -> list[ImagePart | AudioPart]:
        """The media of a request, decoded: images as RGB, audio as mono at the model's rate.

        Raises InvalidMediaError, and PrepareTimeoutError if a worker took longer than timeout_s.
        """
        async with self._places:
            job = _Job.plan(slots, rules, timeout_s)
            descriptor = os.memfd_create("media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            try:
                os.ftruncate(descriptor, job.shared_bytes)
                # A worker that was taken over must not shrink what is mapped here.
                fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
                shared = mmap.mmap(descriptor, job.shared_bytes)
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._threads, job.fill, shared)
                samples = await self._run(job, descriptor, timeout_s)
                return await loop.run_in_executor(self._threads, job.take, shared, samples)
            finally:
                os.close(descriptor)

    async def warm(self) -> None:
        """Start a process now, if none is there, so that the next request finds one."""
        if self._idle or self._busy or self._closed:
            return
        try:
            self._idle.append(await _Worker.start())
        except OmniStageError:
            _log.exception("no process that decodes media can be started")

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._closed = True
        for worker in (*self._idle, *self._busy):
            worker.kill()
        self._idle.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, job: _Job, descriptor: int, timeout_s: float) -> list[int]:
        """The job's answer from a worker. Whatever goes wrong, also that the caller left, ends the worker."""
        worker = self._idle.pop() if self._idle else await _Worker.start()
        self._busy.add(worker)
        try:
            answer = await worker.ask(job.message, descriptor, timeout_s)
        except BaseException:
            worker.kill()
            if not self._closed:
                self._start_another()
            raise
        finally:
            self._busy.discard(worker)
        self._idle.append(worker)
        return job.read(answer)

    def _start_another(self) -> None:
        task = asyncio.get_running_loop().create_task(self.warm())
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)


class _Worker:
    """One process, and the parent's end of its socket."""

    def __init__(self, process: subprocess.Popen[bytes], ours: socket.socket) -> None:
        self._process = process
        self._socket = ours

    @classmethod
    async def start(cls) -> _Worker:
        """Start a process and wait until it can decode. Raises OmniStageError."""
        process, ours = _spawn()
        ours.setblocking(False)
        worker = cls(process, ours)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                greeting = await worker._receive()
        except BaseException:
            worker.kill()
            raise
        if greeting != READY:
            worker.kill()
            raise OmniStageError(f"a process that decodes media ended while it started ({process.returncode})")
        return worker

    async def ask(self, message: bytes, descriptor: int, timeout_s: float) -> dict[str, Any]:
        """Send a job and wait for its answer. Raises PrepareTimeoutError, and InvalidMediaError if the process died."""
        try:
            async with asyncio.timeout(timeout_s):
                socket.send_fds(self._socket, [message], [descriptor])
                answer = await self._receive()
        except TimeoutError as error:
            raise PrepareTimeoutError(
                f"the request's media were not decoded within {timeout_s:g} s (timeouts.prepare); send simpler ones",
                field="start.chat",
                limit=f"{timeout_s:g} s",
            ) from error
        if not answer:
            _log.warning("a process that decoded media ended: its request is refused")
            raise InvalidMediaError("the request's media cannot be decoded: the decoder ended", field="start.chat")
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    async def _receive(self) -> bytes:
        """A packet; empty if the process ended."""
        try:
            return await asyncio.get_running_loop().sock_recv(self._socket, PACKET_BYTES)
        except ConnectionResetError:
            return b""

    def kill(self) -> None:
        """End the process. Idempotent."""
        self._process.kill()
        # Behind the callbacks of a read that was cancelled just now, which still look at the socket.
        asyncio.get_running_loop().call_soon(self._socket.close)
        # Reaped beside the loop: giving back gigabytes takes the kernel a while.
        threading.Thread(target=self._process.wait, name="media-reaper", daemon=True).start()


def _spawn() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """A process that is still importing, and our end of its socket. Takes milliseconds: Popen forks by vfork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "omni_stage.media.worker", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
    return process, ours


@dataclass(frozen=True, slots=True)
class _Job:
    """A request's media and where they lie in shared memory: encoded ones first, then room for the decoded ones."""

    slots: Sequence[MediaSlot]
    media: list[dict[str, Any]]
    shared_bytes: int
    message: bytes

    @classmethod
    def plan(cls, slots: Sequence[MediaSlot], rules: MediaRules, seconds: float) -> _Job:
        """Lay the media out by their headers."""
        media: list[dict[str, Any]] = []
        position = work = 0
        for slot in slots:
            media.append({"offset": position, "size": slot.size})
            position += slot.size
        for slot, medium in zip(slots, media, strict=True):
            position += -position % mmap.PAGESIZE
            medium["out"] = position
            needed, room, described = _describe(slot, rules)
            medium |= described
            position += room
            work = max(work, needed + slot.size)
        job = {
            "media": media,
            "shared_bytes": position,
            "work_bytes": work + _WORK_SLACK_BYTES,
            "seconds": seconds,
        }
        return cls(slots, media, position, json.dumps(job).encode())

    def fill(self, shared: mmap.mmap) -> None:
        """Copy the encoded bytes in."""
        for slot, medium in zip(self.slots, self.media, strict=True):
            shared[medium["offset"] : medium["offset"] + slot.size] = bytes(slot.data)

    def read(self, answer: dict[str, Any]) -> list[int]:
        """Samples of each medium. Raises InvalidMediaError; believes nothing that does not fit the job."""
        if "error" in answer:
            number = answer.get("medium")
            fields = {index: slot.field for index, slot in enumerate(self.slots)}
            raise InvalidMediaError(
                f"a medium cannot be used: {str(answer['error'])[:_MAX_ERROR_CHARS]}",
                field=fields.get(number, "start.chat") if type(number) is int else "start.chat",
            )
        samples = answer.get("samples")
        fits = isinstance(samples, list) and len(samples) == len(self.media)
        if not fits or any(
            type(count) is not int or not 0 <= count <= medium.get("max_samples", 0)
            for count, medium in zip(samples or (), self.media, strict=False)
        ):
            raise InvalidMediaError("the request's media cannot be decoded", field="start.chat")
        return list(samples or ())

    def take(self, shared: mmap.mmap, samples: Sequence[int]) -> list[ImagePart | AudioPart]:
        """Copy the decoded media out: the worker may still write to what is shared."""
        parts: list[ImagePart | AudioPart] = []
        for medium, count in zip(self.media, samples, strict=True):
            begin = medium["out"]
            if "width" in medium:
                pixels = np.ndarray((medium["height"], medium["width"], 3), np.uint8, shared, begin)
                parts.append(ImagePart(Image.fromarray(pixels)))
            else:
                waveform = np.ndarray((count,), np.float32, shared, begin).copy()
                if not np.isfinite(waveform).all():
                    raise InvalidMediaError("audio holds NaN or infinity", field="start.chat")
                parts.append(AudioPart(waveform, medium["to_hz"]))
        return parts


def _describe(slot: MediaSlot, rules: MediaRules) -> tuple[int, int, dict[str, Any]]:
    """Bytes that a worker needs for it, bytes of its result, and the worker's instructions."""
    header = slot.header
    if isinstance(header, ImageHeader):
        kind = header.media_type.removeprefix("image/").upper()
        described = {"kind": kind, "width": header.width, "height": header.height}
        return WORK_BYTES_PER_PIXEL * header.pixels, header.decoded_bytes, described
    if isinstance(header, AudioHeader):
        samples = audio_samples(header, rules)
        return (
            3 * samples * BYTES_PER_SAMPLE,
            samples * BYTES_PER_SAMPLE,
            {
                "max_samples": samples,
                "max_frames": header.frames,
                "rate_hz": header.rate_hz,
                "channels": header.channels,
                "to_hz": rules.takes.audio_rate_hz,
            },
        )
    raise InvalidMediaError("a medium has no header", field=slot.field)
