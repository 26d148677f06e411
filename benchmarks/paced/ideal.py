"""What a table allows: thinker, talker and decoder in virtual time, with edges and servers that cost nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_proto.stage_config import DownstreamStage, Modality, ModelSource, SamplingDefaults, StageConfig
from omni_stage.models.component import StageRequest, UserPrompt
from omni_stage.models.edge_stream import EdgeRows, EdgeStream
from omni_stage.models.sim.clock import Limits, StepClock
from omni_stage.models.sim.clock import Sequence as Queued
from omni_stage.models.sim.tables import Table, sound_cost, token_cost
from omni_stage.models.sim.talker import CodecRun, Talker
from omni_stage.models.sim.thinker import TextRun, Thinker
from omni_stage.models.sim.windows import Job, Window, WindowClock, next_window

_MODEL_LEN = 32_768
_LIMITS = Limits(max_seqs=1024, max_step_tokens=8192, kv_tokens=1 << 40)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sound as it comes: seconds since the request, and of playing."""

    time: float
    seconds: float


@dataclass(slots=True)
class Outcome:
    """One request."""

    first_text: float = 0.0
    chunks: list[Chunk] = field(default_factory=list)

    @property
    def first_audio(self) -> float:
        return self.chunks[0].time

    @property
    def done(self) -> float:
        return self.chunks[-1].time


@dataclass(slots=True)
class _Request:
    text: TextRun
    outcome: Outcome
    codec: CodecRun | None = None
    frames: int = 0
    sounded: int = 0
    ended: bool = False
    window: Window | None = None
    tensors: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class Ideal:
    """One pipeline. `streams`: both edges are Stream, else Full."""

    table: Table
    streams: bool
    _requests: dict[str, _Request] = field(default_factory=dict)

    def run(self, prompt_tokens: int, text_tokens: int, frames: int, starts: Sequence[float]) -> list[Outcome]:
        """Returns the outcomes of equal requests that start at these seconds."""
        table = self.table
        self._thinker = StepClock(token_cost(table.thinker), _LIMITS)
        self._talker = StepClock(token_cost(table.talker), _LIMITS)
        self._decoder = WindowClock(sound_cost(table.decoder), table.decoder.max_batch)
        self._requests = {}
        maker, speaker = Thinker(table, _config("thinker"), _MODEL_LEN), Talker(table, _config("talker"), _MODEL_LEN)
        fixed = SamplingDefaults(max_tokens=text_tokens, ignore_eos=True, seed=0)
        pending = []
        for number, start in enumerate(starts):
            source = UserPrompt(token_ids=[0] * prompt_tokens)
            run = maker.open(StageRequest(f"{number}", source, fixed, want_tensors=True))
            request = _Request(run, Outcome())
            request.codec = speaker.open(
                StageRequest(f"{number}", EdgeStream(), SamplingDefaults(max_tokens=frames, ignore_eos=True))
            )
            self._requests[f"{number}"] = request
            pending.append((start, f"{number}"))
        pending.sort()
        while True:
            clocks = [clock.next_time for clock in (self._thinker, self._talker, self._decoder)]
            now = min([*(time for time in clocks if time is not None), *(start for start, _ in pending[:1])], default=None)
            if now is None:
                return [self._since(request.outcome, start) for request, start in zip(self._requests.values(), starts, strict=True)]
            # What a step makes is there when the next stage begins its own: downstream last.
            self._advance(now)
            while pending and pending[0][0] <= now:
                _, key = pending.pop(0)
                text = self._requests[key].text
                self._thinker.add(
                    Queued(request_id=key, prompt_tokens=text.prompt_tokens, limit=text.limit, allowed=text.allowed), now
                )

    def _advance(self, now: float) -> None:
        for made in self._thinker.advance(now):
            self._on_text(made.request_id, made, now)
        for made in self._talker.advance(now):
            self._on_frame(made.request_id, made, now)
        for job, _ in self._decoder.advance(now):
            self._on_sound(job.request_id, now)

    def _on_text(self, key: str, made: Any, now: float) -> None:
        request = self._requests[key]
        step = request.text.step([made])
        request.outcome.first_text = request.outcome.first_text or now
        codec = request.codec
        if codec is None:
            raise RuntimeError("a request has no talker")
        if not self.streams:
            request.tensors.append(dict(step.tensors))
            if not made.last:
                return
            for tensors in request.tensors[:-1]:
                codec.add(EdgeRows(tensors))
            codec.add(EdgeRows(request.tensors[-1], ended=True))
        else:
            codec.add(EdgeRows(step.tensors, step.complete_tensors, ended=made.last))
        if not codec.is_startable:
            return
        if key in self._started:
            self._talker.allow(key, codec.allowed, now, codec.limit)
        else:
            self._started.add(key)
            self._talker.add(
                Queued(request_id=key, prompt_tokens=codec.prompt_tokens, limit=codec.limit, allowed=codec.allowed), now
            )

    def _on_frame(self, key: str, made: Any, now: float) -> None:
        request = self._requests[key]
        request.frames += 1
        request.ended = made.last
        self._next_window(key, request, now)

    def _on_sound(self, key: str, now: float) -> None:
        request = self._requests[key]
        window = request.window
        if window is None:
            raise RuntimeError("a sound came that nobody asked for")
        seconds = (window.until - window.first) / self.table.talker.frames_per_second
        request.outcome.chunks.append(Chunk(now, seconds))
        request.sounded, request.window = window.until, None
        self._next_window(key, request, now)

    def _next_window(self, key: str, request: _Request, now: float) -> None:
        if request.window is not None:
            return
        shape = self.table.decoder
        if self.streams:
            request.window = next_window(request.sounded, request.frames, ended=request.ended, shape=shape)
        elif request.ended and request.sounded < request.frames:
            request.window = Window(0, 0, request.frames, request.frames)
        if request.window is not None:
            played = request.sounded / self.table.talker.frames_per_second
            due = request.outcome.chunks[0].time + played if request.outcome.chunks else -math.inf
            self._decoder.add(
                Job(request_id=key, frames=request.window.frames, due=due, is_whole=not self.streams), now
            )

    @staticmethod
    def _since(outcome: Outcome, start: float) -> Outcome:
        chunks = [Chunk(chunk.time - start, chunk.seconds) for chunk in outcome.chunks]
        return Outcome(outcome.first_text - start, chunks)

    _thinker: Any = None
    _talker: Any = None
    _decoder: Any = None
    _started: set[str] = field(default_factory=set)


def longest_gap(chunks: Sequence[Chunk]) -> float:
    """Returns the longest silence of a listener who plays from the first chunk on, in seconds; 0 if there is none."""
    return max((silence for _, silence in gaps(chunks)), default=0.0)


def gaps(chunks: Sequence[Chunk]) -> list[tuple[float, float]]:
    """Returns the silences of a listener who plays from the first chunk on: when each begins, and how long it lasts."""
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
