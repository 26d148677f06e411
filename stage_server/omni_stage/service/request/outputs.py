"""Writes a stage's own output to the caller: one writer for each kind of output, in the order of WRITERS.

A new kind of output needs a writer here, and its place in WRITERS.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage.v1 import events_pb2, sampling_pb2
from omni_proto.stage_config import Modality
from omni_stage.exchange import Array, to_samples
from omni_stage.models.component import SpokenText, StageStep
from omni_stage.service.metering import SAMPLE_BYTES
from omni_stage.service.request.planning.plan import RequestPlan
from omni_stage.service.request.responses import ResponseWriter
from omni_stage.service.request.tracing import Timeline

MAX_CHUNK_BYTES = 1 << 20
CHUNK_S = 0.5
"""Playing time of a chunk in seconds. It is short, so that playback can start early, but long enough to make the cost
of headers negligible."""


def encode_samples(samples: npt.NDArray[np.float32], encoding: sampling_pb2.AudioEncoding) -> bytes:
    """Returns float32 [n] in [-1, 1] as little-endian PCM. For S16, values are clipped to this range and rounded to the
    nearest integer."""
    if encoding == sampling_pb2.AUDIO_ENCODING_PCM_F32LE:
        return samples.astype("<f4", copy=False).tobytes()
    scaled: npt.NDArray[np.float32] = np.rint(np.clip(samples, -1.0, 1.0) * np.float32(32767.0))
    return scaled.astype("<i2").tobytes()


@dataclass(slots=True)
class AudioEncoder:
    """Turns one request's audio into AudioChunks, and counts its samples."""

    encoding: sampling_pb2.AudioEncoding
    sample_rate_hz: int
    samples: int = 0
    """Samples encoded so far."""

    def __post_init__(self) -> None:
        if self.encoding == sampling_pb2.AUDIO_ENCODING_UNSPECIFIED:
            self.encoding = sampling_pb2.AUDIO_ENCODING_PCM_S16LE

    def encode(
        self, audio: Array | None, *, last: bool, spoken: Sequence[SpokenText] = ()
    ) -> Iterator[events_pb2.AudioChunk]:
        """Yields chunks of about 0.5 s and at most 1 MiB. With `last`, the final chunk is marked as the last. Each has
        the `spoken` text of its samples.

        With `last` but no audio, yields one empty chunk if audio was encoded before, so that the caller always sees the
        end.
        """
        flat = np.empty(0, np.float32) if audio is None else to_samples(audio)
        count = flat.size
        if count == 0:
            if last and self.samples:
                yield self._chunk(b"", 0, last=True)
            return
        step = min(max(1, int(self.sample_rate_hz * CHUNK_S)), MAX_CHUNK_BYTES // SAMPLE_BYTES[self.encoding])
        first, place = self.samples, 0
        for start in range(0, count, step):
            piece = flat[start : start + step]
            end = start + step
            chunk = self._chunk(encode_samples(piece, self.encoding), piece.size, last=last and end >= count)
            while place < len(spoken) and (spoken[place].end_sample <= end or end >= count):
                one = spoken[place]
                chunk.spoken.add(end_sample=first + one.end_sample, characters=one.characters)
                place += 1
            yield chunk

    def _chunk(self, data: bytes, samples: int, *, last: bool) -> events_pb2.AudioChunk:
        chunk = events_pb2.AudioChunk(
            encoding=self.encoding,
            sample_rate_hz=self.sample_rate_hz,
            channels=1,
            first_sample=self.samples,
            last=last,
            data=data,
        )
        self.samples += samples
        return chunk


class OutputWriter:
    """Writes one kind of output of one request."""

    def __init__(self, plan: RequestPlan, facts: ComponentFacts, responses: ResponseWriter, timeline: Timeline) -> None:
        self.plan = plan
        self.facts = facts
        self.responses = responses
        self.timeline = timeline

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        """Returns whether the request gets this kind of output from this stage."""
        raise NotImplementedError

    async def write(self, step: StageStep) -> None:
        """Write what the step holds of this kind. Waits while the caller reads slowly."""
        raise NotImplementedError

    def add_usage(self, usage: events_pb2.Usage) -> None:
        """Record how much was written."""


class TextWriter(OutputWriter):
    """Reasoning, text and tool calls, in the order in which a model writes them."""

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        return Modality.TEXT in plan.own

    async def write(self, step: StageStep) -> None:
        if step.reasoning:
            await self.responses.send(reasoning=events_pb2.ReasoningDelta(text=step.reasoning))
        if step.segments:
            for delta in _timed_deltas(step):
                await self.responses.send(text=delta)
        elif step.text:
            await self.responses.send_text(step.text)
        for piece in step.tool_calls:
            call = events_pb2.ToolCallDelta(index=piece.index, id=piece.id, name=piece.name, arguments=piece.arguments)
            await self.responses.send(tool_call=call)


class TranscriptWriter(OutputWriter):
    """What the stage heard."""

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        return Modality.TRANSCRIPT in plan.own

    async def write(self, step: StageStep) -> None:
        for delta in _timed_deltas(step):
            await self.responses.send(transcript=delta)
        if step.text and not step.segments:
            await self.responses.send(transcript=events_pb2.TextDelta(text=step.text))


def _timed_deltas(step: StageStep) -> list[events_pb2.TextDelta]:
    return [
        events_pb2.TextDelta(
            text=one.text,
            segment=events_pb2.SpeechSegment(start_ms=round(one.start_s * 1000), end_ms=round(one.end_s * 1000)),
        )
        for one in step.segments
    ]


class TokenWriter(OutputWriter):
    """Token ids, if the request asks for them."""

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        include = plan.start.include
        return include.token_ids if facts.writes_text else include.codec_tokens

    async def write(self, step: StageStep) -> None:
        if not (step.token_ids or step.prompt_token_ids):
            return
        # For embeddings the engine reports zeros instead of token ids.
        has_ids = self.facts.writes_text and not (self.plan.prompt and self.plan.prompt.embeds)
        prompt = step.prompt_token_ids if has_ids else None
        await self.responses.send(tokens=events_pb2.TokenDelta(ids=step.token_ids, prompt_ids=prompt or ()))


class AudioWriter(OutputWriter):
    """Audio, in the encoding that the request asks for."""

    def __init__(self, plan: RequestPlan, facts: ComponentFacts, responses: ResponseWriter, timeline: Timeline) -> None:
        super().__init__(plan, facts, responses, timeline)
        self._encoder = AudioEncoder(plan.start.audio.encoding, facts.sample_rate_hz)

    @classmethod
    def is_wanted(cls, plan: RequestPlan, facts: ComponentFacts) -> bool:
        return Modality.AUDIO in plan.own

    async def write(self, step: StageStep) -> None:
        for chunk in self._encoder.encode(step.audio, last=step.finish_reason is not None, spoken=step.spoken):
            self.timeline.first_audio = self.timeline.first_audio or self.timeline.now()
            await self.responses.send(audio=chunk)

    def add_usage(self, usage: events_pb2.Usage) -> None:
        usage.audio_samples = self._encoder.samples


WRITERS: Final[tuple[type[OutputWriter], ...]] = (TextWriter, TranscriptWriter, TokenWriter, AudioWriter)
"""Every kind of output. The output of one step is written in this order."""


def open_writers(
    plan: RequestPlan, facts: ComponentFacts, responses: ResponseWriter, timeline: Timeline
) -> list[OutputWriter]:
    """Returns the writers of a request's own output in this stage."""
    return [kind(plan, facts, responses, timeline) for kind in WRITERS if kind.is_wanted(plan, facts)]
