"""Computes the best times that a table of GPU timings allows. Pure.

Thinker, talker and decoder run in virtual time, and edges and servers cost nothing. A stage may have several pods: a
request gets the one with the fewest requests. Stages may share a GPU, which then divides its time among them: a step
that begins while other stages compute takes as many times longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Generic, TypeVar

from omni_proto.stage_config import DownstreamStage, Modality, ModelSource, SamplingDefaults, StageConfig
from omni_stage.models.component import EdgeRows, EdgeStream, StageRequest, UserPrompt
from omni_stage.models.sim.engine import DEFAULT_STEP_TOKENS
from omni_stage.models.sim.stages import CodecRun, Talker, TextRun, Thinker
from omni_stage.models.sim.tables import Table, audio_cost, token_cost
from omni_stage.models.sim.virtual_time.clock import EngineLimits, Made, Sequence as Queued, StepClock
from omni_stage.models.sim.virtual_time.windows import Job, Window, WindowClock, next_window
from omni_stage.vllm_adapter.scheduling.playback import Playback, rows_to_gather

STAGES: Final = ("thinker", "talker", "decoder")
_MODEL_LEN = 32_768


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
    table: Table,
    *,
    streams: bool,
    prompt_tokens: int,
    text_tokens: int,
    frames: int,
    starts: Sequence[float],
    gpus: Sequence[Collection[str]] = tuple((stage,) for stage in STAGES),
    step_tokens: int = DEFAULT_STEP_TOKENS,
) -> list[Outcome]:
    """Returns the outcomes of equal requests that start at the times `starts`, in seconds.

    Both edges are Stream if `streams`, else Full. gpus: the stages that have a pod on each GPU.
    step_tokens: maxNumBatchedTokens of thinker and talker.
    """
    return _Ideal(table, streams, prompt_tokens, text_tokens, frames, gpus, step_tokens).run(starts)


_Clock = TypeVar("_Clock", StepClock, WindowClock)


class _Gpu:
    """The clocks of the pods that share a GPU."""

    def __init__(self) -> None:
        self.clocks: list[StepClock | WindowClock] = []

    def share(self, cost_ms: Callable[..., float]) -> Callable[..., float]:
        """Returns the cost of a step of the next clock, while it shares the GPU."""
        own = len(self.clocks)

        def shared(*arguments: int) -> float:
            busy = sum(clock.next_time is not None for at, clock in enumerate(self.clocks) if at != own)
            return cost_ms(*arguments) * (1 + busy)

        return shared


@dataclass(slots=True, eq=False)
class _Pod(Generic[_Clock]):
    clock: _Clock
    requests: int = 0


def _take(pods: Sequence[_Pod[_Clock]]) -> _Pod[_Clock]:
    """Returns the pod for a request."""
    pod = min(pods, key=lambda one: one.requests)
    pod.requests += 1
    return pod


@dataclass(slots=True)
class _Request:
    text: TextRun
    codec: CodecRun
    thinker: _Pod[StepClock]
    talker: _Pod[StepClock] | None = None
    decoder: _Pod[WindowClock] | None = None
    outcome: Outcome = field(default_factory=Outcome)
    held: list[EdgeRows] = field(default_factory=list)
    """Rows that have not been sent to the talker yet. A Full edge keeps all rows until the last one."""
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
    """The clocks of the engines, and the runs of each request. The paced engines use the same code."""

    def __init__(
        self,
        table: Table,
        streams: bool,
        prompt_tokens: int,
        text_tokens: int,
        frames: int,
        gpus: Sequence[Collection[str]],
        step_tokens: int,
    ) -> None:
        limits = EngineLimits(max_seqs=1024, max_step_tokens=step_tokens, kv_tokens=1 << 40)
        self._table = table
        self._streams = streams
        self._thinkers: list[_Pod[StepClock]] = []
        self._talkers: list[_Pod[StepClock]] = []
        self._decoders: list[_Pod[WindowClock]] = []
        for stages in gpus:
            gpu = _Gpu()
            for stage, shape, pods in (
                ("thinker", table.thinker, self._thinkers),
                ("talker", table.talker, self._talkers),
            ):
                if stage in stages:
                    gpu.clocks.append(clock := StepClock(gpu.share(token_cost(shape)), limits))
                    pods.append(_Pod(clock))
            if "decoder" in stages:
                window = WindowClock(gpu.share(audio_cost(table.decoder)), table.decoder.max_batch)
                gpu.clocks.append(window)
                self._decoders.append(_Pod(window))
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
            pods = (*self._thinkers, *self._talkers, *self._decoders)
            times = [time for pod in pods if (time := pod.clock.next_time) is not None]
            times += [start for start, _ in waiting[:1]]
            times += self._wakes.values()
            if not times:
                break
            now = min(times)
            for thinker in self._thinkers:
                for made in thinker.clock.advance(now):
                    self._on_text(made, now)
            for talker in self._talkers:
                for made in talker.clock.advance(now):
                    self._on_frame(made, now)
            for decoder in self._decoders:
                for job, _ in decoder.clock.advance(now):
                    self._on_audio(job.request_id, now)
            for key in [key for key, wake in self._wakes.items() if wake <= now]:
                self._next_window(key, self._requests[key], now)
            while waiting and waiting[0][0] <= now:
                self._start(waiting.pop(0)[1], now)
        return [_since(self._requests[f"{number}"].outcome, start) for number, start in enumerate(starts)]

    def _start(self, key: str, now: float) -> None:
        text = self._text_maker.open(StageRequest(key, self._prompt, self._text_sampling, want_tensors=True))
        codec = self._code_maker.open(StageRequest(key, EdgeStream(), self._code_sampling))
        thinker = _take(self._thinkers)
        self._requests[key] = _Request(text, codec, thinker)
        thinker.clock.add(_queued(key, text), now)

    def _on_text(self, made: Made, now: float) -> None:
        request = self._requests[made.request_id]
        step = request.text.step([made])
        request.outcome.first_text = request.outcome.first_text or now
        request.outcome.last_text = now
        request.held.append(EdgeRows(step.tensors, step.complete_tensors, ended=made.last))
        request.thinker.requests -= made.last
        if not (self._streams or made.last):
            return
        for rows in request.held:
            request.codec.add(rows)
        request.held.clear()
        codec = request.codec
        if request.talker is not None:
            request.talker.clock.allow(made.request_id, codec.allowed, now, codec.limit)
        elif codec.is_startable:
            request.talker, request.decoder = _take(self._talkers), _take(self._decoders)
            request.talker.clock.add(_queued(made.request_id, codec), now)

    def _on_frame(self, made: Made, now: float) -> None:
        request = self._requests[made.request_id]
        request.frames += 1
        request.ended = made.last
        if request.talker is not None:
            request.talker.requests -= made.last
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
        if request.decoder is not None:
            request.decoder.requests -= request.ended and request.decoded == request.frames
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
        if request.window is not None and request.decoder is not None:
            request.asked = now
            played = request.decoded / self._table.talker.frames_per_second
            due = request.outcome.chunks[0].time + played if request.outcome.chunks else -math.inf
            frames = request.window.frames
            request.decoder.clock.add(Job(request_id=key, frames=frames, due=due, is_whole=not self._streams), now)


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
