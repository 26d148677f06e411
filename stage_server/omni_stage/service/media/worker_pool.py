"""Processes that decode media, so that a hostile image harms only its own request and one core for a few seconds.

encoded bytes -> shared memory -> a worker (omni_stage/media/worker.py) -> shared memory -> pixels and samples

A process is killed if its job takes too long, or if the caller cancels and the job does not end within LEFT_S. The next
job then gets a new process. Used from one event loop.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import mmap
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
from PIL import Image

from omni_proto.media_header import BYTES_PER_SAMPLE, AudioHeader, ImageHeader
from omni_proto.video_header import VideoHeader
from omni_stage.errors import DrainingError, InvalidMediaError, OmniStageError
from omni_stage.media.decode import WORK_BYTES_PER_PIXEL
from omni_stage.models.component import AudioPart, ImagePart, MediaPart, VideoPart
from omni_stage.service.media.decoder_process import DecoderProcess
from omni_stage.service.media.planning import VIDEO_WORK_BYTES_PER_PIXEL, MediaRules, MediaSlot, audio_samples

WORKERS: Final = 2
LEFT_S: Final = 0.25
"""Seconds in which a worker may finish a job that its caller has cancelled."""
_WORK_SLACK_BYTES: Final = 64 << 20
"""Memory that a worker needs in addition to its media: tables of the decoders, blocks, the resampler."""
_MAX_ERROR_CHARS: Final = 200

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class MediaPool:
    """Decodes in at most `workers` processes, which start on first use and are kept."""

    def __init__(self, workers: int = WORKERS) -> None:
        self._places = asyncio.Semaphore(workers)
        self._idle: list[DecoderProcess] = []
        self._busy: set[DecoderProcess] = set()
        self._start: asyncio.Task[None] | None = None
        """Starts a process. All jobs that need one wait for this task, and it continues if their clients disconnect."""
        # These threads copy to and from shared memory. The event loop and the threads that prepare text do not.
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="media-copy")
        self._closed = False

    async def decode(self, slots: Sequence[MediaSlot], rules: MediaRules, timeout_s: float) -> list[MediaPart]:
        """Returns the decoded media of a request: images and frames as RGB, audio as mono at the model's rate.

        Raises InvalidMediaError, PrepareTimeoutError if a worker took longer than timeout_s, DrainingError, and
        OmniStageError if no worker starts.
        """
        async with self._places:
            job = _Job.plan(slots, rules, timeout_s)
            descriptor = os.memfd_create("media", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, job.shared_bytes)
            # A compromised worker must not shrink the memory that is mapped here.
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            shared = mmap.mmap(descriptor, job.shared_bytes)
            try:
                await self._in_thread(job.fill, shared)
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

    async def _run(self, job: _Job, descriptor: int, timeout_s: float) -> list[tuple[int, int]]:
        """Run a job in a worker and return its result. The worker is killed if it gives no answer, or if the caller
        cancels and the worker does not answer within LEFT_S."""
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
        """Returns a worker that is busy from now on."""
        while not self._idle:
            if self._closed:
                raise DrainingError("the stage server is shutting down")
            await asyncio.shield(self._start_one())
        worker = self._idle.pop()
        self._busy.add(worker)
        return worker

    async def _in_thread(self, function: Callable[..., _T], *args: Any) -> _T:
        """Call, in a thread, a function that copies or frees memory: it would block the event loop for 0.25 ms per MiB.

        A cancelled caller still waits for the function to end, because the memory is in use until then.
        """
        if self._closed:
            return function(*args)
        future = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            await asyncio.wait({future})
        except asyncio.CancelledError:
            await asyncio.wait({future})
            if not future.cancelled():
                # Retrieve the exception, so that asyncio does not log it: nobody waits for it any more.
                future.exception()
            raise
        return future.result()

    def _start_one(self) -> asyncio.Task[None]:
        """Returns the task that adds a process to the idle ones: the one that runs, else a new one."""
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


@dataclass(frozen=True, slots=True)
class _Job:
    """A request's media and their layout in shared memory: encoded media first, then space for the decoded ones."""

    slots: Sequence[MediaSlot]
    media: list[dict[str, Any]]
    shared_bytes: int
    message: bytes

    @classmethod
    def plan(cls, slots: Sequence[MediaSlot], rules: MediaRules, seconds: float) -> _Job:
        """Returns the job for these media, laid out by their headers."""
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
            if "seconds" in described:
                # The audio follows the frames, which take a whole number of pages.
                medium["sound_out"] = position + room - described["max_samples"] * BYTES_PER_SAMPLE
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
        """Copy the encoded bytes into shared memory."""
        for slot, medium in zip(self.slots, self.media, strict=True):
            shared[medium["offset"] : medium["offset"] + slot.size] = bytes(slot.data)

    def read(self, answer: dict[str, Any]) -> list[tuple[int, int]]:
        """Returns frames and samples of each medium. Raises InvalidMediaError, also for sizes beyond the plan."""
        if "error" in answer:
            number = answer.get("medium")
            fields = {index: slot.field for index, slot in enumerate(self.slots)}
            raise InvalidMediaError(
                f"a medium cannot be used: {str(answer['error'])[:_MAX_ERROR_CHARS]}",
                field=fields.get(number, "start.chat") if type(number) is int else "start.chat",
            )
        sizes = answer.get("sizes")
        fits = isinstance(sizes, list) and len(sizes) == len(self.media)
        if not fits or not all(map(_fits, sizes or (), self.media)):
            raise InvalidMediaError("the request's media cannot be decoded", field="start.chat")
        return [(frames, samples) for frames, samples in sizes or ()]

    def take(self, shared: mmap.mmap, sizes: Sequence[tuple[int, int]]) -> list[MediaPart]:
        """Returns copies of the decoded media, because the worker may still write to the shared memory."""
        parts: list[MediaPart] = []
        for medium, (frames, count) in zip(self.media, sizes, strict=True):
            begin = medium["out"]
            if "seconds" in medium:
                seen = np.ndarray((frames, medium["height"], medium["width"], 3), np.uint8, shared, begin).copy()
                sound = _take_sound(shared, medium["sound_out"], count, medium["to_hz"]) if count else None
                parts.append(VideoPart(seen, sound))
            elif "width" in medium:
                pixels = np.ndarray((medium["height"], medium["width"], 3), np.uint8, shared, begin)
                parts.append(ImagePart(Image.fromarray(pixels)))
            else:
                parts.append(_take_sound(shared, begin, count, medium["to_hz"]))
        return parts


def _fits(size: Any, medium: dict[str, Any]) -> bool:
    """Returns whether a worker's answer is [frames, samples] within the bounds of the requested medium."""
    if not isinstance(size, list) or len(size) != 2 or any(type(count) is not int for count in size):
        return False
    frames, samples = size
    least = 2 if "seconds" in medium else 0
    return bool(least <= frames <= max(1, medium.get("frames", 1)) and 0 <= samples <= medium.get("max_samples", 0))


def _release(shared: mmap.mmap, descriptor: int) -> None:
    """Free a job's memory."""
    os.close(descriptor)
    # The traceback of an error may still refer to the memory; then the memory is freed with the traceback.
    with suppress(BufferError):
        shared.close()


def _take_sound(shared: mmap.mmap, begin: int, count: int, rate_hz: int) -> AudioPart:
    waveform = np.ndarray((count,), np.float32, shared, begin).copy()
    if not np.isfinite(waveform).all():
        raise InvalidMediaError("audio holds NaN or infinity", field="start.chat")
    return AudioPart(waveform, rate_hz)


def _paged(size: int) -> int:
    return size + -size % mmap.PAGESIZE


def _describe(slot: MediaSlot, rules: MediaRules) -> tuple[int, int, dict[str, Any]]:
    """Returns the bytes that a worker needs for a medium, the bytes of its result, and the worker's instructions."""
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
    if isinstance(header, VideoHeader) and slot.frames is not None:
        plan = slot.frames
        samples = header.sound_samples if plan.is_heard else 0
        return (
            VIDEO_WORK_BYTES_PER_PIXEL * header.pixels + 3 * samples * BYTES_PER_SAMPLE,
            _paged(plan.bytes) + samples * BYTES_PER_SAMPLE,
            {
                "kind": header.media_type,
                "seconds": header.seconds,
                "width": plan.width,
                "height": plan.height,
                "frames": plan.count,
                "max_frames": rules.media.max_video_frames,
                "max_samples": samples,
                "to_hz": rules.takes.audio_rate_hz,
            },
        )
    raise InvalidMediaError("a medium has no header", field=slot.field)
