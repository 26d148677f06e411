"""The events of a response as frozen dataclasses, and their conversion from protobuf messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from omni_proto.brief import Brief
from omni_proto.client.errors import OmniRequestError, error_from_status
from omni_proto.stage.v1 import events_pb2, sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GenerateResponse

PCM_S16LE: Final = "pcm_s16le"
"""Signed 16 bit, little-endian: the default encoding of audio."""
PCM_F32LE: Final = "pcm_f32le"
"""32 bit float, little-endian, as the model generated it."""
LENGTH: Final = "length"
"""Finish reason of a stage whose output reached its maximum length (max_tokens, or the longest sequence)."""


@dataclass(frozen=True, slots=True, repr=False)
class Accepted(Brief):
    """A stage accepted the request. From here on the request is never retried."""

    stage: str
    request_id: str
    """Id that appears in all logs."""
    accepted_unix_ns: int
    """Wall clock of the stage's host, ns since the epoch."""
    max_tokens: int = 0
    """Most tokens that the stage will generate for this request; 0 if it generates none, or is too old to say."""


@dataclass(frozen=True, slots=True, repr=False)
class SpeechSegment(Brief):
    """When a segment of the request's audio was spoken, in seconds from the audio's begin."""

    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, repr=False)
class TextDelta(Brief):
    """Text that a stage generated."""

    stage: str
    text: str
    """The new text. A stage's output is all its texts, joined."""
    segment: SpeechSegment | None = None
    """Set if a segment of the speech ends with this text; only from stages that state when words were spoken."""


@dataclass(frozen=True, slots=True, repr=False)
class TranscriptDelta(Brief):
    """Words that the entry stage heard in the request's audio. They are no part of the answer."""

    stage: str
    text: str
    """The new words. The transcript is all texts, joined."""
    segment: SpeechSegment | None = None
    """As in TextDelta."""


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallDelta(Brief):
    """A piece of a tool call that a stage generated."""

    stage: str
    index: int
    """Number of the call in the answer, from 0."""
    id: str
    """Id of the call; only in its first piece."""
    name: str
    """Name of the function; only in its first piece."""
    arguments: str
    """More of the arguments; the pieces, joined, are a JSON object, unless the text ended early."""


@dataclass(frozen=True, slots=True, repr=False)
class ReasoningDelta(Brief):
    """Reasoning that a stage generated before its text."""

    stage: str
    text: str
    """The new reasoning."""


@dataclass(frozen=True, slots=True, repr=False)
class TokenDelta(Brief):
    """Token ids that a stage generated."""

    stage: str
    ids: tuple[int, ...]
    """The new ids."""
    prompt_ids: tuple[int, ...]
    """Ids of the prompt as the engine saw it; only in the first TokenDelta."""


@dataclass(frozen=True, slots=True)
class SpokenText:
    """How much of the text that a stage reads has been spoken at a place of its audio."""

    end_sample: int
    """Position in the answer's audio, in samples of one channel, where the text has been spoken."""
    characters: int
    """Characters from the begin of the text."""


@dataclass(frozen=True, slots=True, repr=False)
class AudioChunk(Brief):
    """Audio that a stage generated. Each chunk can be played independently of the others."""

    stage: str
    data: bytes
    """Interleaved samples."""
    encoding: str
    """PCM_S16LE or PCM_F32LE."""
    sample_rate_hz: int
    """Samples per second."""
    channels: int
    """Number of interleaved channels."""
    first_sample: int
    """Position of the chunk's first sample in the answer's audio, in samples of one channel."""
    last: bool
    """Whether this is the last chunk of the request."""
    spoken: tuple[SpokenText, ...] = ()
    """Where words end in the chunk, if the stage knows it."""


@dataclass(frozen=True, slots=True, repr=False)
class Usage(Brief):
    """What a stage used."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    audio_samples: int = 0
    """Samples of one channel; all channels have the same number."""
    tensor_bytes_sent: int = 0
    """Bytes of tensors sent downstream."""
    codec_tokens: int = 0
    """The part of completion_tokens that are codec tokens of audio, not of text."""
    cached_tokens: int = 0
    """The part of prompt_tokens that was not computed, because earlier requests had begun with the same ones."""


@dataclass(frozen=True, slots=True, repr=False)
class StageTimings(Brief):
    """Times in ns since the stage's Accepted; 0 means that the event did not happen. Only accepted_unix_ns, the time of
    Accepted itself, counts from the epoch. See events.proto."""

    accepted_unix_ns: int = 0
    input_complete_ns: int = 0
    engine_submitted_ns: int = 0
    engine_scheduled_ns: int = 0
    first_output_ns: int = 0
    last_output_ns: int = 0
    transfer_start_ns: int = 0
    transfer_end_ns: int = 0
    first_audio_ns: int = 0
    finished_ns: int = 0
    step_ns: tuple[int, ...] = ()
    """Time of each output of the engine; only with include_timings."""


@dataclass(frozen=True, slots=True, repr=False)
class StageFinished(Brief):
    """A stage finished successfully."""

    stage: str
    finish_reason: str
    """"stop", "length", "diffusion_done" or "empty_input"."""
    stop_reason: str
    """The stop token or stop string, if one ended the output."""
    usage: Usage
    timings: StageTimings
    notes: tuple[str, ...] = ()
    """What the caller should know, for example that damaged parts of an audio file were skipped."""
    language: str = ""
    """Language of what the stage heard (ISO 639-1), if it writes down what it hears and knows the language."""


@dataclass(frozen=True, slots=True, repr=False)
class StageFailed(Brief):
    """A stage failed, and the request allowed partial results."""

    stage: str
    error: OmniRequestError


@dataclass(frozen=True, slots=True, repr=False)
class StageOutcome(Brief):
    """Outcome of one stage in the Summary."""

    stage: str
    finish_reason: str
    """As in StageFinished; "unspecified" if the stage failed."""
    usage: Usage
    code: int
    """google.rpc.Code of the failure; 0 if the stage succeeded."""


@dataclass(frozen=True, slots=True, repr=False)
class Summary(Brief):
    """The request ended."""

    stage: str
    """The entry stage."""
    request_id: str
    stages: tuple[StageOutcome, ...]
    """Every stage that was called, in the order of the graph."""
    total_ns: int
    """ns from the entry stage's Accepted to the end."""

    @property
    def cut_stages(self) -> tuple[str, ...]:
        """Stages whose output reached its maximum length, so that text or speech is missing at the end."""
        return tuple(outcome.stage for outcome in self.stages if outcome.finish_reason == LENGTH)


Event = (
    Accepted
    | TextDelta
    | TranscriptDelta
    | ToolCallDelta
    | ReasoningDelta
    | TokenDelta
    | AudioChunk
    | StageFinished
    | StageFailed
    | Summary
)


def event_from_response(message: GenerateResponse) -> Event | None:
    """Returns the event of a message, or None for an unknown kind, which a newer server may send."""
    kind = message.WhichOneof("message")
    stage = message.stage
    match kind:
        case "accepted":
            accepted = message.accepted
            return Accepted(stage, accepted.request_id, accepted.accepted_unix_ns, accepted.max_tokens)
        case "text":
            return TextDelta(stage, message.text.text, _segment(message.text))
        case "transcript":
            return TranscriptDelta(stage, message.transcript.text, _segment(message.transcript))
        case "tool_call":
            call = message.tool_call
            return ToolCallDelta(stage, call.index, call.id, call.name, call.arguments)
        case "reasoning":
            return ReasoningDelta(stage, message.reasoning.text)
        case "tokens":
            return TokenDelta(stage, tuple(message.tokens.ids), tuple(message.tokens.prompt_ids))
        case "audio":
            return _audio(stage, message.audio)
        case "finished":
            return _finished(stage, message.finished)
        case "failed":
            error = error_from_status(message.failed.status)
            error.stage = error.stage or stage
            return StageFailed(stage, error)
        case "summary":
            return _summary(stage, message.summary)
        case _:
            return None


def _segment(delta: events_pb2.TextDelta) -> SpeechSegment | None:
    if not delta.HasField("segment"):
        return None
    return SpeechSegment(delta.segment.start_ms / 1000, delta.segment.end_ms / 1000)


def _audio(stage: str, audio: events_pb2.AudioChunk) -> AudioChunk:
    is_float = audio.encoding == sampling_pb2.AUDIO_ENCODING_PCM_F32LE
    return AudioChunk(
        stage=stage,
        data=audio.data,
        encoding=PCM_F32LE if is_float else PCM_S16LE,
        sample_rate_hz=audio.sample_rate_hz,
        channels=audio.channels,
        first_sample=audio.first_sample,
        last=audio.last,
        spoken=tuple(SpokenText(one.end_sample, one.characters) for one in audio.spoken),
    )


def _finish_reason(value: int) -> str:
    """Returns the lower-case name of the enum value, e.g. "stop"; "unknown_NUMBER" for a newer server's value."""
    try:
        return events_pb2.FinishReason.Name(value).removeprefix("FINISH_REASON_").lower()
    except ValueError:
        return f"unknown_{value}"


def _usage(usage: events_pb2.Usage) -> Usage:
    return Usage(
        usage.prompt_tokens,
        usage.completion_tokens,
        usage.audio_samples,
        usage.tensor_bytes_sent,
        usage.codec_tokens,
        usage.cached_tokens,
    )


def _finished(stage: str, finished: events_pb2.StageFinished) -> StageFinished:
    times = finished.timings
    return StageFinished(
        stage=stage,
        finish_reason=_finish_reason(finished.finish_reason),
        stop_reason=finished.stop_reason,
        usage=_usage(finished.usage),
        timings=StageTimings(
            accepted_unix_ns=times.accepted_unix_ns,
            input_complete_ns=times.input_complete_ns,
            engine_submitted_ns=times.engine_submitted_ns,
            engine_scheduled_ns=times.engine_scheduled_ns,
            first_output_ns=times.first_output_ns,
            last_output_ns=times.last_output_ns,
            transfer_start_ns=times.transfer_start_ns,
            transfer_end_ns=times.transfer_end_ns,
            first_audio_ns=times.first_audio_ns,
            finished_ns=times.finished_ns,
            step_ns=tuple(times.step_ns),
        ),
        notes=tuple(finished.notes),
        language=finished.language,
    )


def _summary(stage: str, summary: events_pb2.Summary) -> Summary:
    outcomes = tuple(
        StageOutcome(item.stage, _finish_reason(item.finish_reason), _usage(item.usage), item.code)
        for item in summary.stages
    )
    return Summary(stage, summary.request_id, outcomes, summary.total_ns)
