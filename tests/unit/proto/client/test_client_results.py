"""How the client turns responses and statuses into events, results, WAV files and errors."""

from __future__ import annotations

import copy
import struct
import wave
from pathlib import Path

import grpc
import numpy as np
import pytest
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from omni_proto.client import (
    Accepted,
    ArgumentError,
    AudioChunk,
    OmniRequestError,
    ProtocolError,
    ResultBuilder,
    StageFailed,
    StageFinished,
    Summary,
    TextDelta,
    TokenDelta,
    ToolCall,
    Usage,
    error_from_status,
    event_from_response,
    write_wav,
)
from omni_proto.stage.v1 import events_pb2, sampling_pb2
from omni_proto.stage.v1.stage_service_pb2 import GenerateResponse

Detail = error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo | error_details_pb2.BadRequest


def packed(
    *details: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo | error_details_pb2.BadRequest,
) -> list[any_pb2.Any]:
    result = []
    for detail in details:
        item = any_pb2.Any()
        item.Pack(detail)
        result.append(item)
    return result


def audio(first: int, samples: int, *, stage: str = "token2wav", rate: int = 24000, channels: int = 1) -> AudioChunk:
    return AudioChunk(stage, bytes(2 * samples * channels), "pcm_s16le", rate, channels, first, False)


def test_every_message_is_an_event() -> None:
    usage = events_pb2.Usage(
        prompt_tokens=1, completion_tokens=2, audio_samples=3, tensor_bytes_sent=4, codec_tokens=5, cached_tokens=6
    )
    timings = events_pb2.StageTimings(accepted_unix_ns=9, input_complete_ns=1, finished_ns=5, step_ns=[3, 4])
    outcome = events_pb2.StageOutcome(stage="s", finish_reason=events_pb2.FINISH_REASON_STOP, usage=usage, code=0)
    messages = [
        GenerateResponse(stage="s", accepted=events_pb2.Accepted(request_id="r", accepted_unix_ns=5)),
        GenerateResponse(stage="s", text=events_pb2.TextDelta(text="hi")),
        GenerateResponse(stage="s", tokens=events_pb2.TokenDelta(ids=[1], prompt_ids=[2, 3])),
        GenerateResponse(
            stage="s",
            audio=events_pb2.AudioChunk(
                encoding=sampling_pb2.AUDIO_ENCODING_PCM_F32LE,
                sample_rate_hz=24000,
                channels=1,
                last=True,
                data=b"\0" * 4,
            ),
        ),
        GenerateResponse(
            stage="s",
            finished=events_pb2.StageFinished(
                finish_reason=events_pb2.FINISH_REASON_LENGTH, stop_reason="x", usage=usage, timings=timings
            ),
        ),
        GenerateResponse(stage="s", failed=events_pb2.StageFailed(status=status_pb2.Status(code=13, message="m"))),
        GenerateResponse(stage="s", summary=events_pb2.Summary(request_id="r", stages=[outcome], total_ns=8)),
    ]
    accepted, text, tokens, audio, finished, failed, summary = map(event_from_response, messages)
    assert accepted == Accepted("s", "r", 5)
    assert text == TextDelta("s", "hi")
    assert tokens == TokenDelta("s", (1,), (2, 3))
    assert audio == AudioChunk("s", b"\0" * 4, "pcm_f32le", 24000, 1, 0, True)
    assert isinstance(finished, StageFinished)
    assert (finished.finish_reason, finished.stop_reason) == ("length", "x")
    assert finished.usage == Usage(1, 2, 3, 4, 5, 6)
    assert (finished.timings.accepted_unix_ns, finished.timings.step_ns) == (9, (3, 4))
    assert isinstance(failed, StageFailed)
    assert (failed.error.code, failed.error.stage) == (grpc.StatusCode.INTERNAL, "s")
    assert isinstance(summary, Summary)
    assert (summary.stages[0].finish_reason, summary.total_ns) == ("stop", 8)


def test_kinds_of_a_newer_server_are_no_event() -> None:
    """Messages of an unknown kind are ignored. An unknown finish reason gets a name with its number."""
    assert event_from_response(GenerateResponse.FromString(b"\x0a\x01s\xa2\x06\x00")) is None
    newer = GenerateResponse(finished=events_pb2.StageFinished(finish_reason=99))  # type: ignore[arg-type]
    event = event_from_response(newer)
    assert isinstance(event, StageFinished)
    assert event.finish_reason == "unknown_99"


def test_result_puts_events_together(tmp_path: Path) -> None:
    builder = ResultBuilder()
    for event in (
        Accepted("thinker", "r", 1),
        TokenDelta("thinker", (5,), (1, 2)),
        TextDelta("thinker", "hel"),
        Accepted("talker", "r2", 1),
        TextDelta("thinker", "lo"),
        TokenDelta("thinker", (6,), ()),
        TokenDelta("talker", (7,), ()),
        audio(0, 100),
        audio(100, 50),
        Summary("thinker", "r", (), 1),
    ):
        builder.add(event)
    result = builder.result()
    assert (result.request_id, result.text, dict(result.texts)) == ("r", "hello", {"thinker": "hello"})
    assert result.token_ids == {"thinker": [5, 6], "talker": [7]}
    assert result.prompt_token_ids == {"thinker": [1, 2]}
    assert (len(result.audio), result.sample_rate_hz, result.channels) == (300, 24000, 1)
    assert result.audio_seconds == 150 / 24000
    assert result.summary is not None
    result.write_wav(tmp_path / "a.wav")
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getnframes() == 150


@pytest.mark.parametrize(
    "second",
    [audio(99, 1), audio(101, 1), audio(100, 1, rate=16000), audio(100, 1, channels=2), audio(100, 1, stage="other")],
    ids=["overlap", "gap", "rate", "channels", "stage"],
)
def test_audio_with_a_gap_or_another_format_is_an_error(second: AudioChunk) -> None:
    builder = ResultBuilder()
    builder.add(audio(0, 100))
    with pytest.raises(ProtocolError):
        builder.add(second)


def test_an_answer_without_audio_writes_no_file(tmp_path: Path) -> None:
    result = ResultBuilder().result()
    assert result.audio_seconds == 0
    with pytest.raises(ArgumentError, match="no audio"):
        result.write_wav(tmp_path / "a.wav")
    assert not (tmp_path / "a.wav").exists()


@pytest.mark.parametrize("channels", [1, 2])
def test_float_wav_files_are_read_by_libsndfile(tmp_path: Path, channels: int) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.linspace(-1.5, 1.5, 60, dtype="<f4")
    path = tmp_path / "f.wav"
    write_wav(path, samples.tobytes(), sample_rate_hz=24000, channels=channels, encoding="pcm_f32le")
    read, rate = soundfile.read(path, dtype="float32", always_2d=True)
    assert rate == 24000
    assert np.array_equal(read, samples.reshape(-1, channels))
    assert soundfile.info(path).subtype == "FLOAT"
    content = path.read_bytes()
    assert struct.unpack_from("<I", content, 4)[0] == len(content) - 8


def test_integer_wav_files_are_read_by_libsndfile(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    samples = np.arange(-50, 50, dtype="<i2")
    write_wav(tmp_path / "i.wav", samples.tobytes(), sample_rate_hz=16000)
    read, rate = soundfile.read(tmp_path / "i.wav", dtype="int16")
    assert rate == 16000
    assert np.array_equal(read, samples)


@pytest.mark.parametrize(
    ("size", "rate", "channels", "encoding"),
    [(3, 24000, 1, "pcm_s16le"), (6, 24000, 2, "pcm_s16le"), (4, 0, 1, "pcm_s16le"), (4, 1, 1, "mp3")],
)
def test_bytes_that_do_not_fit_the_format_are_not_written(
    tmp_path: Path, size: int, rate: int, channels: int, encoding: str
) -> None:
    """Samples that do not fit their format are not written to a WAV file."""
    with pytest.raises(ArgumentError):
        write_wav(tmp_path / "x.wav", bytes(size), sample_rate_hz=rate, channels=channels, encoding=encoding)


def rich_status() -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(
        domain="omnipipeline.io",
        reason="TOO_MANY_REQUESTS",
        metadata={"stage": "talker", "request_id": "r", "limit": "4 requests"},
    )
    retry = error_details_pb2.RetryInfo()
    retry.retry_delay.FromMilliseconds(1500)
    bad = error_details_pb2.BadRequest(field_violations=[{"field": "start.seed", "description": "d"}])
    return status_pb2.Status(code=8, message="full", details=packed(info, bad, retry))


def test_statuses_become_typed_errors() -> None:
    error = error_from_status(rich_status())
    assert error.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.reason, error.stage, error.request_id) == ("TOO_MANY_REQUESTS", "talker", "r")
    assert (error.field, error.limit, error.retry_after_s) == ("start.seed", "4 requests", 1.5)
    assert str(error) == "stage 'talker': RESOURCE_EXHAUSTED/TOO_MANY_REQUESTS: full"


def test_damaged_or_unknown_details_are_ignored() -> None:
    broken = any_pb2.Any(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\xff")
    foreign = any_pb2.Any(type_url="type.googleapis.com/acme.Other", value=b"\xff")
    error = error_from_status(status_pb2.Status(code=99, message="", details=[broken, foreign]))
    assert (error.code, error.reason, error.retry_after_s) == (grpc.StatusCode.UNKNOWN, "", None)


@pytest.mark.parametrize("error", [error_from_status(rich_status()), ProtocolError("odd")], ids=["request", "protocol"])
def test_errors_can_be_copied(error: OmniRequestError) -> None:
    other = copy.copy(error)
    assert type(other) is type(error)
    assert vars(other) == vars(error)
    assert str(other) == str(error)


def test_tool_calls_and_reasoning_are_put_together() -> None:
    pieces = [
        GenerateResponse(stage="llm", accepted=events_pb2.Accepted(request_id="r")),
        GenerateResponse(stage="llm", reasoning=events_pb2.ReasoningDelta(text="Rome, ")),
        GenerateResponse(stage="llm", reasoning=events_pb2.ReasoningDelta(text="then.")),
        GenerateResponse(stage="llm", tool_call=events_pb2.ToolCallDelta(id="c0", name="weather", arguments='{"ci')),
        GenerateResponse(stage="llm", tool_call=events_pb2.ToolCallDelta(arguments='ty": "Rome"}')),
        GenerateResponse(stage="llm", tool_call=events_pb2.ToolCallDelta(index=1, id="c1", name="now")),
    ]
    builder = ResultBuilder()
    for piece in pieces:
        event = event_from_response(piece)
        assert event is not None
        builder.add(event)
    result = builder.result()
    assert result.reasoning == {"llm": "Rome, then."}
    assert result.tool_calls == {"llm": (ToolCall("c0", "weather", '{"city": "Rome"}'), ToolCall("c1", "now", ""))}
    assert result.text == ""
