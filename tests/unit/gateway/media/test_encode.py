"""FFmpeg and libsndfile decode the gateway's encoded audio correctly, whatever pieces it was encoded in."""

from __future__ import annotations

import io
import math
import struct

import av
import numpy as np
import pytest
import soundfile

from omni_gateway.context import Budget, Share
from omni_gateway.media.encode import MEDIA_TYPES, encode_whole, make_encoder

RATE = 24_000
TONE = [int(12_000 * math.sin(2 * math.pi * 440 * i / RATE)) for i in range(RATE)]
PCM = struct.pack(f"<{len(TONE)}h", *TONE)

HOLD = Share(Budget(1 << 30)).add


def encode(name: str, pcm: bytes, step: int) -> list[bytes]:
    encoder = make_encoder(name, RATE, 1)
    pieces = [encoder.encode(pcm[start : start + step]) for start in range(0, len(pcm), step)]
    return [*pieces, encoder.finish()]


def decode(data: bytes) -> tuple[int, np.ndarray]:
    with av.open(io.BytesIO(data)) as file:
        frames = [frame.to_ndarray()[0] for frame in file.decode(audio=0)]
        return file.streams.audio[0].rate or 0, np.concatenate(frames)


@pytest.mark.parametrize("step", [2, 960, 1918, 1 << 20])
def test_lossless_formats_keep_every_sample(step: int) -> None:
    assert b"".join(encode("pcm", PCM[:9600], step)) == PCM[:9600]
    for name in ("wav", "flac"):
        rate, samples = decode(b"".join(encode(name, PCM[:9600], step)))
        assert (rate, samples.tolist()) == (RATE, TONE[:4800])


@pytest.mark.parametrize("name", ["mp3", "opus", "aac"])
def test_lossy_formats_decode_alike(name: str) -> None:
    pieces = encode(name, PCM, 1920)
    rate, samples = decode(b"".join(pieces))
    assert len(samples) / rate == pytest.approx(1.0, abs=0.08)
    spectrum = np.abs(np.fft.rfft(samples.astype(np.float64)))
    assert np.argmax(spectrum) * rate / len(samples) == pytest.approx(440, abs=2)
    # Most of the encoded data is returned before finish().
    assert len(b"".join(pieces[:-1])) > 0.8 * len(b"".join(pieces))


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_a_complete_file_contains_its_duration(name: str) -> None:
    """A file that is encoded as a whole contains its duration, if the format has a field for it."""
    data = encode_whole(name, PCM, RATE, 1)
    if name == "pcm":
        assert data == PCM
    elif name in ("wav", "flac"):
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert (rate, samples.tolist()) == (RATE, TONE)
    elif name == "aac":  # ADTS has no field for the duration
        assert decode(data)[0] == RATE
    else:
        assert soundfile.info(io.BytesIO(data)).duration == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("name", MEDIA_TYPES)
def test_an_answer_without_audio_is_valid_silence(name: str) -> None:
    assert isinstance(encode_whole(name, b"", RATE, 1), bytes)


@pytest.mark.parametrize("name", [name for name in MEDIA_TYPES if name != "pcm"])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "streamed"])
def test_audio_without_a_sample_is_a_file_that_decodes(name: str, whole: bool) -> None:
    """An answer may have no sound. Its file is silent and short, and not a file of 0 bytes, which players refuse."""
    data = encode_whole(name, b"", RATE, 1) if whole else b"".join(encode(name, b"", 2))
    assert data
    with av.open(io.BytesIO(data)) as file:
        frames = [frame.to_ndarray() for frame in file.decode(audio=0)]
        seconds = sum(frame.shape[-1] for frame in frames) / (file.streams.audio[0].rate or 1)
    assert seconds < 0.15
    assert all(not np.abs(frame).max() > 1e-3 for frame in frames)
    if name in ("wav", "mp3", "opus") or (name == "flac" and whole):  # libsndfile needs the length of a FLAC
        samples, _ = soundfile.read(io.BytesIO(data))
        assert not np.abs(samples).max(initial=0) > 1e-3


@pytest.mark.parametrize("name", ["mp3", "opus", "flac", "aac"])
@pytest.mark.parametrize("hz", [4_000, 7_350, 17_000, 64_000, 96_000])
def test_every_sample_rate_of_a_voice_can_be_encoded(name: str, hz: int) -> None:
    encoder = make_encoder(name, hz, 1)
    rate, samples = decode(encoder.encode(bytes(2 * hz)) + encoder.finish())
    assert len(samples) / rate == pytest.approx(1.0, abs=0.15)
