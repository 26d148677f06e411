"""The reader of headers and the decoder agree on which files are media, how large and how long they are."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from av.error import FFmpegError
from hypothesis import given, settings, strategies as st
from PIL import Image

from omni_proto.media_headers import Kind, read_header, sniff
from omni_proto.media_headers.audio import _JOINTS, AudioHeader
from omni_proto.media_headers.container import MediaHeaderError
from omni_proto.media_headers.image import ImageHeader
from omni_stage.decoding.audio import AudioRules, decode_audio
from omni_stage.decoding.decode import UndecodableError, decode_image
from support.media.audios import COMPRESSED, encode_audio
from support.tables import each_row

AUDIOS = Path(__file__).parents[2] / "data" / "sounds"
HZ = 16_000
CHECKED = settings(max_examples=60)
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
@pytest.mark.parametrize("joined", [1, 2])
def test_formats_of_other_systems_are_heard(form: tuple[str, str], rate: int, joined: int) -> None:
    header, heard = hear(encode_audio(*form, np.zeros(rate * 2, np.float32), rate) * joined)
    assert heard == pytest.approx(2.0 * joined, abs=0.06 * joined)
    assert header.seconds == pytest.approx(2.0 * joined if form[0] in ("aiff", "au") else 0.0, abs=0.001)


@pytest.mark.parametrize("form", ["aiff", "au"])
def test_what_such_a_file_lacks_of_its_length_is_noted(form: str) -> None:
    data = encode_audio(form, "pcm_s16be", np.zeros(HZ, np.float32), HZ)
    header = read_header(data[: len(data) * 3 // 4], "audio")
    assert isinstance(header, AudioHeader)
    rules = AudioRules(HZ, header.seconds, 192_000, 8)
    _, damage = decode_audio(data[: len(data) * 3 // 4], header.media_type, rules, np.zeros(2 * HZ, np.float32))
    assert damage == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize(
    ("head", "kind", "name"),
    [
        (b"\0\0\0\x18ftypheic", "image", "HEIC"),
        (b"II*\0", "image", "TIFF"),
        (b"<!DOCTYPE html>", "image", "a web page"),
        (b"%PDF-1.7", "image", "PDF"),
        (b"RIFF\0\0\0\0WAVE", "image", "audio/wav"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "audio", "Windows Media (WMA, WMV)"),
        (b"RIFX\0\0\0\0WAVE", "audio", "WAV in big-endian order (RIFX)"),
        (b"RIFF\0\0\0\0AVI " + encode_audio("mp3", "libmp3lame", np.zeros(HZ, np.float32), HZ), "audio", "AVI"),
        (b"\x0b\x77\0\0", "audio", "AC-3"),
        (b"GIF89a", "audio", "image/gif"),
        (b"\x89PNG\r\n\x1a\n", "video", "image/png"),
    ],
)
def test_other_formats_are_refused_by_name(head: bytes, kind: Kind, name: str) -> None:
    with pytest.raises(MediaHeaderError) as refused:
        read_header(head + b"\0" * 100, kind)
    assert str(refused.value).endswith(f": it is {name}; convert it")


def hear(data: bytes) -> tuple[AudioHeader, float]:
    header = read_header(data, "audio")
    assert isinstance(header, AudioHeader)
    room = np.zeros(30 * HZ, np.float32)
    count, _ = decode_audio(data, header.media_type, AudioRules(HZ, header.seconds, 192_000, 8), room)
    return header, count / HZ


TONE = np.sin(np.arange(HZ) / 6) * 0.5
LONG = 0xFFFFFFFF
GUID = bytes.fromhex("000000001000800000aa00389b71")
AMBISONIC = bytes.fromhex("00002107d3118644c8c1ca000000")


def wave_format(
    tag: int, bits: int, *, valid: int | None = None, extension: int | None = None, guid: bytes = GUID
) -> bytes:
    """Returns a format in the extensible form, or in the plain one if there is no extension."""
    plain = struct.pack("<HHIIHH", tag, 1, HZ, HZ * bits // 8, bits // 8, bits)
    if extension is None:
        return plain
    return b"\xfe\xff" + plain[2:] + struct.pack("<HHIH", extension, bits if valid is None else valid, 4, tag) + guid


def chunk(name: bytes, data: bytes, size: int | None = None) -> bytes:
    return name + struct.pack("<I", len(data) if size is None else size) + data


def sizes(data: int) -> bytes:
    return chunk(b"ds64", struct.pack("<QQQI", data + 80, data, HZ, 0))


PCM, FLOAT = (TONE * 32767).astype("<i2").tobytes(), TONE.astype("<f4").tobytes()
DEEP = (TONE * 8388607).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
S16, MORE = wave_format(1, 16), chunk(b"axml", bytes(40_000))


@each_row(
    "form, before, layout, data, size, after",
    [
        (b"RIFF", b"", wave_format(1, 16, extension=22), PCM, None, MORE),
        (b"RIFF", b"", wave_format(1, 24, extension=22, valid=20), DEEP, None, b""),
        (b"RIFF", b"", wave_format(1, 16, extension=22, valid=0), PCM, None, b""),
        (b"RIFF", b"", wave_format(1, 16, extension=0), PCM, None, b""),
        (b"RIFF", b"", wave_format(1, 16, extension=22, guid=AMBISONIC), PCM, None, b""),
        (b"RIFF", b"", wave_format(3, 32, extension=22), FLOAT, None, b""),
        (b"RIFF", b"", wave_format(3, 32, extension=22, valid=24), FLOAT, None, b""),
        (b"RF64", sizes(len(PCM)), S16, PCM, LONG, MORE),
        (b"BW64", sizes(len(PCM)) + chunk(b"chna", bytes(44)), S16, PCM, LONG, MORE),
        (b"RF64", sizes(len(FLOAT)), wave_format(3, 32, extension=22), FLOAT, LONG, MORE),
        (b"RF64", sizes(0), S16, PCM, LONG, b""),
        (b"RF64", sizes(0), S16, PCM, None, MORE),
        (b"RF64", sizes(1 << 40), S16, PCM, LONG, b""),
        (b"RF64", b"", S16, PCM, LONG, b""),
        (b"BW64", chunk(b"JUNK", bytes(28)), S16, PCM, LONG, b""),
    ],
)
def test_a_wav_of_each_form_is_heard_whole(
    form: bytes, before: bytes, layout: bytes, data: bytes, size: int | None, after: bytes
) -> None:
    """Extensible formats, and the forms of files beyond 4 GiB, also if the recorder did not note the length."""
    file = chunk(form, b"WAVE" + before + chunk(b"fmt ", layout) + chunk(b"data", data, size) + after, size)
    header, room = read_header(file, "audio"), np.zeros(30 * HZ, np.float32)
    assert isinstance(header, AudioHeader)
    count, damage = decode_audio(file, header.media_type, AudioRules(HZ, header.seconds, 192_000, 8), room)
    assert (header.seconds, count, damage) == (1.0, HZ, 0.0)
    np.testing.assert_allclose(room[:count], TONE, atol=1e-4)


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


def test_beginnings_are_searched_for_by_bytes() -> None:
    # Each medium of a call is searched in each turn. Without bytes at its start, a pattern takes ten times as long.
    assert [kind for kind, joint in _JOINTS.items() if joint.pattern[:1] in (b"(", b"[", b".")] == []
