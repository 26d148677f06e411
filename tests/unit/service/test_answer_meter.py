"""Underruns and silence for a listener who plays an answer as soon as its first audio arrives."""

from __future__ import annotations

import pytest

from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2 as pb
from omni_stage.service.metering import AnswerMeter

RATE_HZ = 24_000


def audio(seconds: float) -> pb.GenerateResponse:
    response = pb.GenerateResponse()
    response.audio.data = bytes(2 * round(seconds * RATE_HZ))
    response.audio.sample_rate_hz = RATE_HZ
    response.audio.channels = 1
    response.audio.encoding = sampling_pb2.AUDIO_ENCODING_PCM_S16LE
    return response


def hear(*chunks: tuple[float, float]) -> AnswerMeter:
    """Returns a meter that has noted chunks. Each is given as its time of arrival and its duration, in seconds."""
    now = 0.0
    meter = AnswerMeter(clock=lambda: now, began=0.0)
    for time, seconds in chunks:
        now = time
        meter.note(audio(seconds))
    return meter


@pytest.mark.parametrize(
    ("chunks", "underruns", "silence"),
    [
        pytest.param([(5.0, 1.0)], 0, 0.0, id="one chunk, however late"),
        pytest.param([(1.0, 1.0), (1.2, 1.0), (2.9, 1.0)], 0, 0.0, id="ahead of playback"),
        pytest.param([(1.0, 1.0), (2.0, 1.0)], 0, 0.0, id="just in time"),
        pytest.param([(1.0, 1.0), (2.015, 1.0)], 0, 0.0, id="less late than a packet lasts"),
        pytest.param([(1.0, 1.0), (2.5, 1.0)], 1, 0.5, id="half a second too late"),
        pytest.param([(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)], 2, 1.0, id="slower than playback"),
        pytest.param([(1.0, 0.5), (2.0, 2.0), (3.9, 1.0)], 1, 0.5, id="late once, then ahead again"),
        pytest.param([(0.0, 1.0), (1.5, 1.0)], 1, 0.5, id="from the very beginning"),
    ],
)
def test_a_listener_who_plays_from_the_first_audio_on(
    chunks: list[tuple[float, float]], underruns: int, silence: float
) -> None:
    meter = hear(*chunks)
    assert (meter.underruns, meter.silence_s) == (underruns, pytest.approx(silence))
    assert meter.audio_s == pytest.approx(sum(seconds for _, seconds in chunks))
    assert meter.first_audio_s == chunks[0][0]


def test_an_answer_without_audio_has_no_underruns() -> None:
    meter = hear()
    meter.note(pb.GenerateResponse())
    assert (meter.first_audio_s, meter.underruns, meter.audio_s) == (None, 0, 0.0)
