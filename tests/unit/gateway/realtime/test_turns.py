"""When turns begin and end: by probabilities, and by Silero's model on real speech."""

from __future__ import annotations

import asyncio
import math
import random
import struct

import pytest

from omni_gateway.realtime.audio import OutputAudio, decode_g711, to_wav
from omni_gateway.realtime.detector import Detector
from omni_gateway.realtime.state.config import AudioFormat, TurnDetection
from omni_gateway.realtime.state.heard import Spoken, cut_at_word
from omni_gateway.realtime.state.turns import Began, Hesitated, Paused, Resumed, Turn, TurnDetector
from support.media.spoken import speech_24k

PCM, PCMU, PCMA = (AudioFormat(type=name) for name in ("audio/pcm", "audio/pcmu", "audio/pcma"))


@pytest.mark.parametrize(
    ("probabilities", "turns"),
    [
        ([0.1] * 10, []),
        ([0.9, 0.1] * 10, []),  # single frames are clicks
        ([0.1] * 20 + [0.9] * 2, [Began(540)]),
        ([0.9] * 2, [Began(0)]),  # not before the begin of the audio
        ([0.1] * 20 + [0.9] * 4 + [0.1] * 4, [Began(540), Paused(896)]),
        ([0.1] * 20 + [0.9] * 4 + [0.4] * 9, [Began(540)]),  # neither speech nor silence
        ([0.1] * 20 + [0.9] * 4 + [0.1] * 3 + [0.6] + [0.1] * 4, [Began(540), Paused(1024)]),
    ],
)
def test_turns_follow_from_the_probabilities(probabilities: list[float], turns: list[Turn]) -> None:
    detector = TurnDetector(TurnDetection(silence_duration_ms=128, prefix_padding_ms=100))
    assert [turn for one in probabilities for turn in detector.add(one)] == turns


def test_a_pause_is_reported_once_and_so_is_its_end() -> None:
    probabilities = [0.9] * 4 + [0.1] * 3 + [0.9] + [0.1] * 9
    found = []
    for early_ms in (0, 64, 128):
        detector = TurnDetector(TurnDetection(silence_duration_ms=128), 0.0, early_ms)
        found.append([turn for one in probabilities for turn in detector.add(one)])
    ends = [Began(0), Paused(384)]
    assert found == [ends, [Began(0), Hesitated(192), Resumed(), Hesitated(320), Paused(384)], ends]


def test_a_turn_continues_with_other_settings() -> None:
    detector = TurnDetector(TurnDetection(silence_duration_ms=640))
    assert [turn for one in [0.9] * 4 + [0.1] * 4 for turn in detector.add(one)] == [Began(0)]
    detector.use(TurnDetection(silence_duration_ms=160))
    assert list(detector.add(0.1)) == [Paused(288)]


def samples(values: list[float]) -> bytes:
    return struct.pack(f"<{len(values)}h", *(int(one) for one in values))


async def follow(data: bytes, format: AudioFormat, step_ms: int = 20) -> list[Turn]:
    detector = Detector(TurnDetection(), format, 0.0)
    step = step_ms * format.bytes_per_ms
    return [turn for at in range(0, len(data), step) async for turn in detector.add(data[at : at + step])]


@pytest.mark.parametrize("format", [PCM, PCMU, PCMA], ids=lambda one: one.type)
async def test_a_spoken_sentence_is_one_turn(format: AudioFormat) -> None:
    output = OutputAudio(format)
    data = output.add(speech_24k(), 24_000, 1) + output.finish()
    began, paused = await follow(data, format)
    assert isinstance(began, Began)
    assert isinstance(paused, Paused)
    assert 600 <= began.audio_ms <= 900
    assert 3100 <= paused.audio_ms <= 3700


async def test_pieces_of_any_size_give_the_same_turns() -> None:
    data = speech_24k()
    assert await follow(data, PCM, 7) == await follow(data, PCM, 500)
    detector = Detector(TurnDetection(), PCM, 0.0)
    odd = [data[at : at + 4801] for at in range(0, len(data), 4801)]  # half a sample is left each time
    assert [turn for piece in odd async for turn in detector.add(piece)] == await follow(data, PCM)


async def test_long_pieces_do_not_delay_other_sessions() -> None:
    ended = []

    async def hear(name: str, seconds: int) -> None:
        assert [turn async for turn in Detector(TurnDetection(), PCM, 0.0).add(bytes(48_000 * seconds))] == []
        ended.append(name)

    await asyncio.gather(*(hear("long", 60) for _ in range(4)), hear("short", 1))
    assert ended[0] == "short"


async def test_noise_and_music_are_no_turns() -> None:
    source = random.Random(1)
    noise = samples([source.gauss(0, 2000) for _ in range(72_000)])
    chord = samples([4000 * sum(math.sin(math.tau * hz * at / 24_000) for hz in (262, 330)) for at in range(72_000)])
    assert await follow(noise, PCM) == []
    assert await follow(chord, PCM) == []


@pytest.mark.parametrize("format", [PCMU, PCMA], ids=lambda one: one.type)
def test_g711_keeps_a_tone(format: AudioFormat) -> None:
    tone = [8000 * math.sin(math.tau * 440 * at / 24_000) for at in range(24_000)]
    output = OutputAudio(format)
    encoded = output.add(samples(tone), 24_000, 1) + output.finish()
    assert len(encoded) == 8000
    found = struct.unpack("<8000h", decode_g711(encoded, format))
    wanted = tone[::3]
    error = sum((a - b) ** 2 for a, b in zip(found[100:-100], wanted[100:-100], strict=True)) / 7800
    assert 10 * math.log10(8000**2 / 2 / error) > 25  # dB
    assert len(to_wav(encoded, format)) == 44 + 16_000


def test_the_text_is_cut_where_the_audio_was() -> None:
    spoken = Spoken()
    spoken.text = "one two three four"
    for _ in range(10):
        spoken.add_audio(100)
    spoken.complete = True
    assert spoken.pace == 18.0
    assert [spoken.cut(at, None) for at in (0, 500, 1000, 2000)] == ["", "one two", "one two three four", spoken.text]
    late = Spoken()
    late.text = "one two"
    late.add_audio(1000)
    late.text += " three four five six seven"
    late.add_audio(1000)
    assert late.cut(1000, 100.0) == "one two"  # the later text had not been spoken
    assert late.cut(2000, 10.0) == "one two three four"


def test_the_text_is_cut_at_the_word_that_was_heard() -> None:
    spoken = Spoken()
    spoken.text = "I'm 27, and well."
    spoken.add_audio(1000, [(90.0, 3), (400.0, 3), (800.0, 7)])
    cuts = ["", "I'm", "I'm", "I'm 27,", "I'm 27,"]
    assert [spoken.cut(at, 1.0) for at in (89, 90, 799, 800, 1000)] == cuts
    spoken.add_audio(500, [(1100.0, 11), (1400.0, 17)])
    spoken.complete = True
    assert [spoken.cut(at, None) for at in (1099, 1100, 1400, 9000)] == ["I'm 27,", "I'm 27, and", *[spoken.text] * 2]


@pytest.mark.parametrize(
    ("text", "chars", "cut"), [("one two", 5, "one"), ("one two", 3, "one"), ("天" * 40, 30, "天" * 30)]
)
def test_words_are_whole(text: str, chars: int, cut: str) -> None:
    assert cut_at_word(text, chars) == cut
