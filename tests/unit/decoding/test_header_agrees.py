"""The reader of headers and the decoder agree on which files are media, how large and how long they are."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from av.error import FFmpegError
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image

from omni_proto.media_headers import read_header, sniff
from omni_proto.media_headers.audio import AudioHeader
from omni_proto.media_headers.container import MediaHeaderError
from omni_proto.media_headers.image import ImageHeader
from omni_stage.decoding.audio import AudioRules, decode_audio
from omni_stage.decoding.decode import UndecodableError, decode_image
from support.media.audios import COMPRESSED, encode_audio

AUDIOS = Path(__file__).parents[2] / "data" / "sounds"
HZ = 16_000
CHECKED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("L", "P", "RGB"),
}
PICTURES = [(kind, mode) for kind, modes in MODES.items() for mode in modes]


@CHECKED
@given(st.sampled_from(PICTURES), st.integers(1, 70), st.integers(1, 70))
def test_every_picture_has_the_size_of_its_header(form: tuple[str, str], width: int, height: int) -> None:
    kind, mode = form
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, kind)
    header = read_header(file.getvalue(), "image")
    assert isinstance(header, ImageHeader)
    assert (header.media_type, header.width, header.height) == (f"image/{kind.lower()}", width, height)
    assert decode_image(file.getvalue(), kind, np.zeros((height, width, 3), np.uint8)).shape == (height, width, 3)


FORMS = (*COMPRESSED, ("wav", "pcm_s16le"), ("wav", "pcm_f32le"), ("flac", "flac"))
PLAIN = (("aiff", "pcm_s16be"), ("aiff", "pcm_f32be"), ("au", "pcm_s16be"), ("caf", "pcm_s16le"), ("caf", "alac"))


@CHECKED
@given(st.sampled_from(FORMS), st.sampled_from([8_000, 16_000, 24_000, 48_000]), st.integers(1, 40), st.integers(1, 3))
def test_all_audio_has_the_length_of_its_header(form: tuple[str, str], rate: int, tenths: int, joined: int) -> None:
    samples = np.zeros(rate * tenths // 10, np.float32)
    data = encode_audio(*form, samples, rate) * joined
    header, heard = hear(data)
    expected = tenths / 10 * joined
    # Encoders add up to two frames at the beginning and one at the end: at 8 kHz, 0.4 s of AAC.
    assert expected - 0.05 * joined <= heard <= expected + 0.4 * joined
    if header.seconds:
        assert header.seconds == pytest.approx(heard, abs=0.4 * joined)


@pytest.mark.parametrize("form", PLAIN, ids="-".join)
@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_formats_of_other_systems_are_heard(form: tuple[str, str], rate: int) -> None:
    header, heard = hear(encode_audio(*form, np.zeros(rate * 2, np.float32), rate))
    assert (header.seconds, heard) == (0.0, pytest.approx(2.0, abs=0.06))


def hear(data: bytes) -> tuple[AudioHeader, float]:
    header = read_header(data, "audio")
    assert isinstance(header, AudioHeader)
    room = np.zeros(30 * HZ, np.float32)
    count, _ = decode_audio(data, header.media_type, AudioRules(HZ, header.seconds, 192_000, 8), room)
    return header, count / HZ


FILES = tuple(file.read_bytes()[:4000] for file in sorted(AUDIOS.iterdir()) if file.suffix != ".md")
changes = st.lists(st.tuples(st.integers(0, 3999), st.binary(min_size=1, max_size=3)), min_size=1, max_size=4)


@CHECKED
@given(st.sampled_from(FILES), changes, st.integers(200, 4000))
def test_what_one_refuses_the_other_does_not_hear(data: bytes, changed: list[tuple[int, bytes]], length: int) -> None:
    """A file whose header cannot be read is none that the decoder would have played."""
    damaged = bytearray(data[:length])
    for place, value in changed:
        damaged[place : place + len(value)] = value
    kind = sniff(damaged, "audio")
    if kind is None:
        return
    try:
        read_header(damaged, "audio")
    except MediaHeaderError:
        with pytest.raises((UndecodableError, MediaHeaderError, FFmpegError, IndexError, ValueError)):
            decode_audio(bytes(damaged), kind, AudioRules(HZ, 0.0, 192_000, 8), np.zeros(30 * HZ, np.float32))
