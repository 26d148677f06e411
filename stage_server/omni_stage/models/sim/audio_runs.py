"""Runs the decoder's requests: turns frames into windows of audio, ordered by when playback needs them."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator

from omni_stage.errors import InvalidRequestError, InvalidTensorError, ModelExecutionError
from omni_stage.models.component import EdgeInput, EdgeStream, FinishReason, StageRequest, StageStep
from omni_stage.models.sim.content import VoiceAudio
from omni_stage.models.sim.gauges import Load
from omni_stage.models.sim.manifest import DECODER
from omni_stage.models.sim.stages import Decoder
from omni_stage.models.sim.tables import AudioShape, audio_cost
from omni_stage.models.sim.virtual_time.ticker import Mailbox, Ticker
from omni_stage.models.sim.virtual_time.windows import Job, Window, WindowClock, next_window
from omni_stage.vllm_adapter.scheduling.playback import Playback, rows_to_gather


class AudioRuns:
    """The requests of one decoder. Used from one event loop."""

    def __init__(self, component: Decoder, shape: AudioShape, frames_per_second: float, max_batch: int) -> None:
        self.last_step = time.monotonic()
        """time.monotonic() of the last step, or of the window that ended an idle period."""
        self._component = component
        self._shape = shape
        self._frame_s = 1 / frames_per_second
        self._clock = WindowClock(audio_cost(shape), max_batch)
        self._mail: dict[str, Mailbox[Job]] = {}
        self._busy: set[str] = set()
        self._ticker = Ticker(lambda: self._clock.next_time, self._advance)

    @property
    def open_windows(self) -> int:
        """Number of windows that are waiting or running."""
        return len(self._busy)

    @property
    def load(self) -> Load:
        """The decoder's current load and its totals. Frames count as prompt tokens."""
        return Load(self._clock.running, len(self._clock.waiting), prompt_tokens=self._clock.frames)

    def run(self, request: StageRequest) -> AsyncGenerator[StageStep, None]:
        """Returns the steps of a request. Closing the generator aborts it.

        Raises InvalidRequestError. The generator raises InvalidTensorError or ModelExecutionError.
        """
        voice = self._component.voice_audio(request)
        if isinstance(request.source, EdgeStream):
            return self._run_windows(request, request.source, voice)
        if isinstance(request.source, EdgeInput):
            return self._run_whole(request, request.source.tensors["codes"].shape[0], voice)
        raise InvalidRequestError(f"component {DECODER.id} reads tensors of a talker, not a prompt")

    def abort(self, request_id: str) -> None:
        """End a request: the generator of its steps raises ModelExecutionError. Unknown ids are ignored."""
        if (mail := self._mail.get(request_id)) is not None:
            mail.fail(ModelExecutionError("the request was aborted"))

    def close(self) -> None:
        """Stop the ticker."""
        self._ticker.close()

    async def _run_whole(
        self, request: StageRequest, frames: int, voice: VoiceAudio
    ) -> AsyncGenerator[StageStep, None]:
        self._check(frames)
        if not frames:
            yield StageStep(finish_reason=FinishReason.EMPTY_INPUT)
            return
        try:
            step = await self._make(request, Window(0, 0, frames, frames), voice, due=-math.inf, is_whole=True)
            step.finish_reason = FinishReason.STOP
            yield step
        finally:
            self._forget(request.request_id)

    async def _run_windows(
        self, request: StageRequest, stream: EdgeStream, voice: VoiceAudio
    ) -> AsyncGenerator[StageStep, None]:
        frames, done, ended, began, last, took = 0, 0, False, -math.inf, 0, 0.0
        playback = Playback()
        try:
            while not (ended and done == frames):
                now = time.monotonic()
                left = playback.gathers_until(now, took) - now
                wanted = rows_to_gather(last) if left > 0 else 0
                window = next_window(done, frames, ended=ended, shape=self._shape, gather=wanted)
                if window is None:
                    # Without frames to compute there is nothing to do at the end of the wait.
                    waits = wanted and next_window(done, frames, ended=ended, shape=self._shape) is not None
                    try:
                        async with asyncio.timeout(left if waits else None):
                            rows = await stream.read()
                    except TimeoutError:
                        continue
                    frames += rows.tensors["codes"].shape[0] if "codes" in rows.tensors else 0
                    ended = rows.ended
                    self._check(frames)
                    continue
                submitted = time.monotonic_ns()
                step = await self._make(request, window, voice, due=began + done * self._frame_s)
                step.submitted_ns = submitted
                made = time.monotonic()
                began = made if not done else began
                done, last, took = window.until, window.until - window.first, made - submitted / 1e9
                playback.add(made, last * self._frame_s)
                # A window that reads the last frame so far is not the last window unless the input has ended.
                if ended and done == frames:
                    step.finish_reason = FinishReason.STOP
                yield step
                if step.finish_reason is not None:
                    return
            yield StageStep(finish_reason=FinishReason.STOP if done else FinishReason.EMPTY_INPUT)
        finally:
            self._forget(request.request_id)

    async def _make(
        self, request: StageRequest, window: Window, voice: VoiceAudio, *, due: float, is_whole: bool = False
    ) -> StageStep:
        """Returns the step of one window as soon as the window is done in virtual time."""
        now, key = time.monotonic(), request.request_id
        mail = self._mail.setdefault(key, Mailbox())
        if not self._busy:
            self.last_step = now
        self._busy.add(key)
        self._advance(now)
        job = Job(request_id=key, frames=window.frames, due=due, is_whole=is_whole, priority=request.priority)
        self._clock.add(job, now)
        self._ticker.update()
        (made,) = await mail.take()
        samples = self._component.samples_per_frame
        audio = voice.samples(window.first * samples, (window.until - window.first) * samples)
        return StageStep(audio=audio, scheduled_ns=int(made.scheduled * 1e9))

    def _check(self, frames: int) -> None:
        if frames > (maximum := self._component.max_frames):
            raise InvalidTensorError(
                f"codes: {frames} frames, at most {maximum} fit one request; lower max_tokens upstream",
                field="tensors.codes",
                limit=maximum,
            )

    def _forget(self, request_id: str) -> None:
        self._mail.pop(request_id, None)
        self._busy.discard(request_id)
        self._clock.abort(request_id)
        self._ticker.update()

    def _advance(self, now: float) -> None:
        for job, _ in self._clock.advance(now):
            self.last_step = now
            self._busy.discard(job.request_id)
            if (mail := self._mail.get(job.request_id)) is not None:
                mail.put(job)
