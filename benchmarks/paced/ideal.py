"""Computes the best times that a table of GPU timings allows. Pure.

Thinker, talker and decoder run in virtual time, and edges and servers cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from omni_proto.stage_config import DownstreamStage, Modality, ModelSource, SamplingDefaults, StageConfig
from omni_stage.models.component import EdgeRows, EdgeStream, StageRequest, UserPrompt
from omni_stage.models.sim.stages import CodecRun, Talker, TextRun, Thinker
from omni_stage.models.sim.tables import Table, audio_cost, token_cost
from omni_stage.models.sim.virtual_time.clock import EngineLimits, Made, Sequence as Queued, StepClock
from omni_stage.models.sim.virtual_time.windows import Job, Window, WindowClock, next_window
from omni_stage.vllm_adapter.scheduling.playback import Playback, rows_to_gather

_MODEL_LEN = 32_768
_LIMITS = EngineLimits(max_seqs=1024, max_step_tokens=8192, kv_tokens=1 << 40)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of audio: it arrived `time` seconds after the request, and plays for `seconds`."""

    time: float
    seconds: float


@dataclass(slots=True)
class Outcome:
    """When one request got its text and audio, in seconds since it was sent."""

    first_text: float = 0.0
    last_text: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def first_audio(self) -> float:
        """Arrival of the first chunk of audio."""
        return self.chunks[0].time

    @property
    def done(self) -> float:
        """Arrival of the last chunk of audio."""
        return self.chunks[-1].time


def run_ideal(
    table: Table, *, streams: bool, prompt_tokens: int, text_tokens: int, frames: int, starts: Sequence[float]
) -> list[Outcome]:
    """Returns the outcomes of equal requests that start at the times `starts`, in seconds.

    Both edges are Stream if `streams`, else Full.
    """
    return _Ideal(table, streams, prompt_tokens, text_tokens, frames).run(starts)


@dataclass(slots=True)
class _Request:
    text: TextRun
    codec: CodecRun
    outcome: Outcome = field(default_factory=Outcome)
    held: list[EdgeRows] = field(default_factory=list)
    """Rows that have not been sent to the talker yet. A Full edge keeps all rows until the last one."""
    speaks: bool = False
    frames: int = 0
    decoded: int = 0
    ended: bool = False
    window: Window | None = None
    asked: float = 0.0
    """When the newest window was given to the decoder."""
    last: int = 0
    """Number of frames of the last window."""
    took: float = 0.0
    """Seconds that the decoder had the last window."""
    playback: Playback = field(default_factory=Playback)


class _Ideal:
    """The clocks of the three engines, and the runs of each request. The paced engines use the same code."""

    def __init__(self, table: Table, streams: bool, prompt_tokens: int, text_tokens: int, frames: int) -> None:
        self._table = table
        self._streams = streams
        self._thinker = StepClock(token_cost(table.thinker), _LIMITS)
        self._talker = StepClock(token_cost(table.talker), _LIMITS)
        self._decoder = WindowClock(audio_cost(table.decoder), table.decoder.max_batch)
        self._requests: dict[str, _Request] = {}
        self._wakes: dict[str, float] = {}
        """Request -> until when its next window waits for more frames."""
        self._text_maker = Thinker(table, _config("thinker"), _MODEL_LEN)
        self._code_maker = Talker(table, _config("talker"), _MODEL_LEN)
        self._prompt = UserPrompt(token_ids=[0] * prompt_tokens)
        self._text_sampling = SamplingDefaults(max_tokens=text_tokens, ignore_eos=True, seed=0)
        self._code_sampling = SamplingDefaults(max_tokens=frames, ignore_eos=True)

    def run(self, starts: Sequence[float]) -> list[Outcome]:
        """Returns the outcomes of requests that start at these times. May be called once."""
        waiting = sorted((start, f"{number}") for number, start in enumerate(starts))
        while True:
            clocks = (self._thinker.next_time, self._talker.next_time, self._decoder.next_time)
            times = [time for time in clocks if time is not None] + [start for start, _ in waiting[:1]]
            times += self._wakes.values()
            if not times:
                break
            now = min(times)
            for made in self._thinker.advance(now):
                self._on_text(made, now)
            for made in self._talker.advance(now):
                self._on_frame(made, now)
            for job, _ in self._decoder.advance(now):
                self._on_audio(job.request_id, now)
            for key in [key for key, wake in self._wakes.items() if wake <= now]:
                self._next_window(key, self._requests[key], now)
            while waiting and waiting[0][0] <= now:
                self._start(waiting.pop(0)[1], now)
        return [_since(self._requests[f"{number}"].outcome, start) for number, start in enumerate(starts)]

    def _start(self, key: str, now: float) -> None:
        text = self._text_maker.open(StageRequest(key, self._prompt, self._text_sampling, want_tensors=True))
        self._requests[key] = _Request(
            text, self._code_maker.open(StageRequest(key, EdgeStream(), self._code_sampling))
        )
        self._thinker.add(_queued(key, text), now)

    def _on_text(self, made: Made, now: float) -> None:
        request = self._requests[made.request_id]
        step = request.text.step([made])
        request.outcome.first_text = request.outcome.first_text or now
        request.outcome.last_text = now
        request.held.append(EdgeRows(step.tensors, step.complete_tensors, ended=made.last))
        if not (self._streams or made.last):
            return
        for rows in request.held:
            request.codec.add(rows)
        request.held.clear()
        codec = request.codec
        if request.speaks:
            self._talker.allow(made.request_id, codec.allowed, now, codec.limit)
        elif codec.is_startable:
            request.speaks = True
            self._talker.add(_queued(made.request_id, codec), now)

    def _on_frame(self, made: Made, now: float) -> None:
        request = self._requests[made.request_id]
        request.frames += 1
        request.ended = made.last
        self._next_window(made.request_id, request, now)

    def _on_audio(self, key: str, now: float) -> None:
        request = self._requests[key]
        if (window := request.window) is None:
            raise RuntimeError("the decoder finished a window that the request did not ask for")
        seconds = (window.until - window.first) / self._table.talker.frames_per_second
        request.outcome.chunks.append(Chunk(now, seconds))
        request.playback.add(now, seconds)
        request.last, request.took = window.until - window.first, now - request.asked
        request.decoded, request.window = window.until, None
        self._next_window(key, request, now)

    def _next_window(self, key: str, request: _Request, now: float) -> None:
        if request.window is not None:
            return
        self._wakes.pop(key, None)
        if self._streams:
            find = partial(next_window, request.decoded, request.frames, ended=request.ended, shape=self._table.decoder)
            until = request.playback.gathers_until(now, request.took)
            request.window = find(gather=rows_to_gather(request.last) if until > now else 0)
            if request.window is None and find() is not None:
                self._wakes[key] = until
        elif request.ended and request.decoded < request.frames:
            request.window = Window(0, 0, request.frames, request.frames)
        if request.window is not None:
            request.asked = now
            played = request.decoded / self._table.talker.frames_per_second
            due = request.outcome.chunks[0].time + played if request.outcome.chunks else -math.inf
            frames = request.window.frames
            self._decoder.add(Job(request_id=key, frames=frames, due=due, is_whole=not self._streams), now)


def _queued(key: str, run: TextRun | CodecRun) -> Queued:
    return Queued(request_id=key, prompt_tokens=run.prompt_tokens, limit=run.limit, allowed=run.allowed)


def _since(outcome: Outcome, start: float) -> Outcome:
    chunks = [Chunk(chunk.time - start, chunk.seconds) for chunk in outcome.chunks]
    return Outcome(outcome.first_text - start, outcome.last_text - start, chunks)


def longest_gap(chunks: Sequence[Chunk]) -> float:
    """Returns the longest silence in seconds if playback starts with the first chunk; 0 if there is none."""
    return max((silence for _, silence in gaps(chunks)), default=0.0)


def gaps(chunks: Sequence[Chunk]) -> list[tuple[float, float]]:
    """Returns the silences if playback starts with the first chunk: when each begins, and how long it lasts."""
    found: list[tuple[float, float]] = []
    runs_out = chunks[0].time if chunks else 0.0
    for chunk in chunks:
        if chunk.time > runs_out + 1e-9:
            found.append((runs_out, chunk.time - runs_out))
            runs_out = chunk.time
        runs_out += chunk.seconds
    return found


def _config(stage: str) -> StageConfig:
    below = DownstreamStage(
        stage="below", target="none", component="sim/talker", stages=["below"], outputs=[Modality.AUDIO]
    )
    return StageConfig(
        pipeline="ideal", stage=stage, component=f"sim/{stage}", model=ModelSource(path="/table"), downstream=[below]
    )
