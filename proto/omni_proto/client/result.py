"""Collects the events of a request into one result, and writes its audio as WAV."""

from __future__ import annotations

import struct
import wave
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from omni_proto.brief import Brief
from omni_proto.client.errors import ProtocolError
from omni_proto.client.events import (
    LENGTH,
    PCM_F32LE,
    PCM_S16LE,
    Accepted,
    AudioChunk,
    Event,
    ReasoningDelta,
    SpeechSegment,
    StageFailed,
    StageFinished,
    Summary,
    TextDelta,
    TokenDelta,
    ToolCallDelta,
    TranscriptDelta,
)
from omni_proto.client.tools import ToolCall
from omni_proto.errors import ArgumentError

_WAVE_FORMAT_IEEE_FLOAT: Final = 3
_SAMPLE_BYTES: Final = {PCM_S16LE: 2, PCM_F32LE: 4}
_MAX_DATA_BYTES: Final = 2**32 - 1 - 64


@dataclass(frozen=True, slots=True, repr=False)
class TimedText(Brief):
    """A segment of the request's audio, and its words."""

    text: str
    segment: SpeechSegment


@dataclass(frozen=True, slots=True, repr=False)
class GenerationResult(Brief):
    """The result of a request."""

    request_id: str = ""
    """Id that appears in all logs."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Text by stage, without the transcript."""
    transcript: str = ""
    """What the entry stage heard; empty if it returns no Transcript."""
    segments: tuple[TimedText, ...] = ()
    """The transcript in segments, if the stage that heard it states when words were spoken."""
    reasoning: Mapping[str, str] = field(default_factory=dict)
    """Reasoning by stage."""
    tool_calls: Mapping[str, tuple[ToolCall, ...]] = field(default_factory=dict)
    """Tool calls by stage, in their order."""
    token_ids: Mapping[str, list[int]] = field(default_factory=dict)
    """Token ids by stage; with include_token_ids or include_codec_tokens."""
    prompt_token_ids: Mapping[str, list[int]] = field(default_factory=dict)
    """Ids of the prompt by stage; with include_token_ids."""
    audio: bytes = b""
    """Interleaved samples; empty if no stage returned audio."""
    encoding: str = PCM_S16LE
    """Encoding of audio."""
    sample_rate_hz: int = 0
    """Samples per second; 0 without audio."""
    channels: int = 0
    """Number of interleaved channels; 0 without audio."""
    finished: Mapping[str, StageFinished] = field(default_factory=dict)
    """Stages that finished successfully."""
    failed: Mapping[str, StageFailed] = field(default_factory=dict)
    """Stages that failed; only with allow_partial."""
    summary: Summary | None = None
    """The summary of the entry stage."""

    @property
    def text(self) -> str:
        """The answer: the text of the last stage, in the order of the graph, that returned text."""
        order = [outcome.stage for outcome in self.summary.stages] if self.summary else []
        writing = [stage for stage in order if stage in self.texts] or list(self.texts)
        return self.texts[writing[-1]] if writing else ""

    @property
    def cut_stages(self) -> tuple[str, ...]:
        """Stages whose output reached its maximum length, so that text or speech is missing at the end."""
        return tuple(name for name, stage in self.finished.items() if stage.finish_reason == LENGTH)

    @property
    def audio_seconds(self) -> float:
        """Length of the audio, in seconds."""
        if not self.audio:
            return 0.0
        return len(self.audio) / (sample_bytes(self.encoding) * self.channels * self.sample_rate_hz)

    def write_wav(self, path: str | Path) -> None:
        """Write the audio as a WAV file. Raises ArgumentError if there is none; OSError of the file."""
        if not self.sample_rate_hz:
            raise ArgumentError(
                "the answer has no audio; request modalities=['audio'] from a pipeline that returns audio"
            )
        write_wav(path, self.audio, sample_rate_hz=self.sample_rate_hz, channels=self.channels, encoding=self.encoding)


class ResultBuilder:
    """Collects events in the order in which they came."""

    def __init__(self) -> None:
        self._request_id = ""
        self._texts: dict[str, list[str]] = {}
        self._transcript: list[str] = []
        self._words: list[str] = []
        """Of the segment that has not ended."""
        self._segments: list[TimedText] = []
        self._reasoning: dict[str, list[str]] = {}
        self._tool_calls: dict[str, dict[int, ToolCall]] = {}
        self._token_ids: dict[str, list[int]] = {}
        self._prompt_token_ids: dict[str, list[int]] = {}
        self._audio = bytearray()
        self._first_audio: AudioChunk | None = None
        self._finished: dict[str, StageFinished] = {}
        self._failed: dict[str, StageFailed] = {}
        self._summary: Summary | None = None

    def add(self, event: Event) -> None:
        """Add the next event. Raises ProtocolError if audio has a gap or an overlap, or changes its stage or format."""
        match event:
            case Accepted():
                self._request_id = self._request_id or event.request_id
            case TextDelta():
                self._texts.setdefault(event.stage, []).append(event.text)
                self._add_words(event)
            case TranscriptDelta():
                self._transcript.append(event.text)
                self._add_words(event)
            case ReasoningDelta():
                self._reasoning.setdefault(event.stage, []).append(event.text)
            case ToolCallDelta():
                self._add_tool_call(event)
            case TokenDelta():
                self._token_ids.setdefault(event.stage, []).extend(event.ids)
                if event.prompt_ids:
                    self._prompt_token_ids.setdefault(event.stage, []).extend(event.prompt_ids)
            case AudioChunk():
                self._add_audio(event)
            case StageFinished():
                self._finished[event.stage] = event
            case StageFailed():
                self._failed[event.stage] = event
            case Summary():
                self._summary = event

    def result(self) -> GenerationResult:
        """Returns the result of the events so far."""
        first = self._first_audio
        return GenerationResult(
            request_id=self._request_id,
            texts={stage: "".join(parts) for stage, parts in self._texts.items()},
            transcript="".join(self._transcript),
            segments=tuple(self._segments),
            reasoning={stage: "".join(parts) for stage, parts in self._reasoning.items()},
            tool_calls={
                stage: tuple(call for _, call in sorted(calls.items())) for stage, calls in self._tool_calls.items()
            },
            token_ids=self._token_ids,
            prompt_token_ids=self._prompt_token_ids,
            audio=bytes(self._audio),
            encoding=first.encoding if first else PCM_S16LE,
            sample_rate_hz=first.sample_rate_hz if first else 0,
            channels=first.channels if first else 0,
            finished=self._finished,
            failed=self._failed,
            summary=self._summary,
        )

    def _add_words(self, event: TextDelta | TranscriptDelta) -> None:
        self._words.append(event.text)
        if event.segment is not None:
            self._segments.append(TimedText("".join(self._words), event.segment))
            self._words.clear()

    def _add_tool_call(self, piece: ToolCallDelta) -> None:
        calls = self._tool_calls.setdefault(piece.stage, {})
        begun = calls.get(piece.index, ToolCall("", "", ""))
        calls[piece.index] = ToolCall(begun.id or piece.id, begun.name or piece.name, begun.arguments + piece.arguments)

    def _add_audio(self, chunk: AudioChunk) -> None:
        first = self._first_audio = self._first_audio or chunk
        if chunk.channels < 1 or chunk.sample_rate_hz < 1:
            raise ProtocolError(f"stage {chunk.stage!r} sent audio without channels or sample rate")
        as_first = (first.stage, first.encoding, first.sample_rate_hz, first.channels)
        if (chunk.stage, chunk.encoding, chunk.sample_rate_hz, chunk.channels) != as_first:
            raise ProtocolError(f"stage {chunk.stage!r} sent audio of another stage or format than the chunks before")
        due, rest = divmod(len(self._audio), sample_bytes(chunk.encoding) * chunk.channels)
        if rest or chunk.first_sample != due:
            raise ProtocolError(f"stage {chunk.stage!r} sent sample {chunk.first_sample} when sample {due} was due")
        self._audio += chunk.data


def sample_bytes(encoding: str) -> int:
    """Returns the bytes of one sample of one channel. Raises ArgumentError for an unknown encoding."""
    size = _SAMPLE_BYTES.get(encoding)
    if size is None:
        raise ArgumentError(f"audio encoding {encoding!r} is unknown; use {PCM_S16LE!r} or {PCM_F32LE!r}")
    return size


def write_wav(
    path: str | Path, data: bytes, *, sample_rate_hz: int, channels: int = 1, encoding: str = PCM_S16LE
) -> None:
    """Write interleaved samples as a WAV file. Raises ArgumentError; OSError of the file."""
    frame_bytes = sample_bytes(encoding) * channels
    if sample_rate_hz < 1 or channels < 1 or len(data) % frame_bytes:
        raise ArgumentError(
            f"{len(data)} bytes are not whole {encoding} frames of {channels} channels at {sample_rate_hz} Hz"
        )
    if len(data) > _MAX_DATA_BYTES:
        raise ArgumentError(f"a WAV file holds at most {_MAX_DATA_BYTES} bytes of samples, got {len(data)}")
    if encoding == PCM_F32LE:
        Path(path).write_bytes(_float_header(len(data), sample_rate_hz, channels) + data)
        return
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(data)


def _float_header(data_bytes: int, sample_rate_hz: int, channels: int) -> bytes:
    """Returns a RIFF header with the fact chunk that formats other than PCM must have."""
    frame_bytes = 4 * channels
    fmt = struct.pack(
        "<HHIIHHH", _WAVE_FORMAT_IEEE_FLOAT, channels, sample_rate_hz, sample_rate_hz * frame_bytes, frame_bytes, 32, 0
    )
    fact = struct.pack("<I", data_bytes // frame_bytes)
    body = b"WAVE" + _chunk(b"fmt ", fmt) + _chunk(b"fact", fact) + struct.pack("<4sI", b"data", data_bytes)
    return struct.pack("<4sI", b"RIFF", len(body) + data_bytes) + body


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack("<4sI", name, len(content)) + content
