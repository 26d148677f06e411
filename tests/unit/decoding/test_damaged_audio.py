"""Audio is heard as players do: damage is skipped and reported, joined files are heard to their end, and what is not
audio is refused. The files are from encoders in common use (tests/data/sounds)."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from av.error import FFmpegError

from omni_gateway.media.encode import encode_whole, make_encoder
from omni_proto.media_headers import read_header
from omni_proto.media_headers.audio import AudioHeader
from omni_stage.decoding.audio import AudioRules, decode_audio
from omni_stage.decoding.decode import UndecodableError
from support.media.audios import encode_audio
from support.media.samples import encode_wav, make_audio
from support.tables import each_row

FOLDER = Path(__file__).parents[2] / "data" / "sounds"
HZ = 16_000


def read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def hear(data: bytes) -> tuple[float, float, float]:
    """Returns the seconds of decoded audio, its main frequency in Hz, and the share that is damaged."""
    header = read_header(data, "audio")
    assert isinstance(header, AudioHeader)
    room = np.zeros(60 * HZ, np.float32)
    count, damage = decode_audio(data, header.media_type, AudioRules(HZ, header.seconds, 192_000, 8), room)
    heard = room[:count]
    frequency = np.argmax(np.abs(np.fft.rfft(heard))) * HZ / count
    return count / HZ, float(frequency), damage


FILES = sorted(file.name for file in FOLDER.iterdir() if file.suffix != ".md")


@pytest.mark.parametrize("name", FILES)
def test_whole_files_are_heard_whole(name: str) -> None:
    seconds, frequency, damage = hear(read(name))
    assert seconds == pytest.approx(1.0, abs=0.11)
    assert frequency == pytest.approx(440, abs=3)
    assert damage == 0


def zeroed(data: bytes, at: float, count: int) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes(count) + data[place + count :]


def with_junk(data: bytes, at: float, count: int) -> bytes:
    place = int(len(data) * at)
    return data[:place] + random.Random(1).randbytes(count) + data[place:]


def flipped(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes((data[place] ^ 0xFF,)) + data[place + 1 :]


def id3(size: int) -> bytes:
    return b"ID3\x03\0\0" + bytes((size >> 21 & 127, size >> 14 & 127, size >> 7 & 127, size & 127)) + b"\xff" * size


ID3V1 = b"TAG" + bytes(125)
APE = b"APETAGEX" + struct.pack("<IIII", 2000, 32, 0, 0x80000000) + bytes(8)

HARMLESS: dict[str, tuple[Callable[[], bytes], float]] = {
    "mp3 with tags where two were joined": (lambda: (id3(3000) + read("lame.mp3") + ID3V1) * 2, 2.1),
    "mp3 with an ape tag in the middle": (lambda: read("lame.mp3") + APE + read("lame.mp3"), 2.1),
    "mp3 of two rates and channels": (lambda: read("lame.mp3") + read("stereo.mp3"), 2.1),
    "chained opus": (lambda: read("opusenc.opus") * 3, 3.0),
    "chained opus of mono and stereo": (lambda: read("opusenc.opus") + read("stereo.opus"), 2.0),
    "chained vorbis of two rates": (lambda: read("oggenc.ogg") + read("stereo.ogg"), 2.0),
    "chained vorbis and opus": (lambda: read("oggenc.ogg") + read("opusenc.opus"), 2.0),
    "joined flac": (lambda: read("flac.flac") + read("piped.flac") + read("flac.flac"), 3.0),
    "joined wav": (lambda: encode_wav(make_audio(5)) * 2, 2.0),
    "joined aac": (lambda: read("ffmpeg.aac") * 2, 2.1),
    "joined webm": (lambda: read("streamed.webm") * 2, 2.0),
    "joined m4a": (lambda: read("phone.m4a") * 2, 2.1),
    "flac behind an id3 tag": (lambda: id3(20) + read("flac.flac"), 1.0),
    "aac behind an id3 tag": (lambda: id3(63) + read("ffmpeg.aac"), 1.0),
    "wav of size 0": (lambda: sized(0), 1.0),
    "wav of the largest size": (lambda: sized(0xFFFFFFFF), 1.0),
    "wav with an odd chunk": (lambda: chunked(b"LIST" + struct.pack("<I", 5) + b"abcde\0"), 1.0),
    "wav with more behind it": (lambda: encode_wav(make_audio(5)) + b"id3 " + struct.pack("<I", 9) + bytes(10), 1.0),
    "wav whose block size is not set": (
        lambda: encode_wav(make_audio(5))[:32] + bytes(2) + encode_wav(make_audio(5))[34:],
        1.0,
    ),
    "wav with its format behind the samples": (lambda: reordered(), 1.0),
    "mp3 in a wav": (lambda: in_wav(read("lame.mp3"), 0x55), 1.0),
    "mpeg layer 2": (lambda: of_layer_2("mp2"), 1.0),
    "mpeg layer 2 in a wav": (lambda: of_layer_2("wav"), 1.0),
    "quicktime from before its brand, big-endian": (lambda: without_brand(), 1.0),
    "flac behind line breaks": (lambda: b"\r\n\r\n" + read("flac.flac"), 1.0),
    "mp3 with reserved space behind it": (lambda: read("lame.mp3") + bytes(60_000), 1.0),
    "mp3 without its first kilobyte": (lambda: read("lame.mp3")[1003:], 0.7),
}


def of_layer_2(form: str) -> bytes:
    return encode_audio(form, "mp2", make_audio(5, rate_hz=48_000), 48_000)


def without_brand() -> bytes:
    data = encode_audio("mov", "pcm_s16be", make_audio(5, rate_hz=48_000), 48_000)
    assert data[4:8] == b"ftyp"
    return data[:4] + b"wide" + data[8:]


def stated_longer(data: bytes) -> bytes:
    packed = int.from_bytes(data[18:26], "big")
    return data[:18] + (packed | (1 << 30)).to_bytes(8, "big") + data[26:]


def in_wav(data: bytes, tag: int) -> bytes:
    form = struct.pack("<HHIIHH", tag, 1, 44_100, 8000, 1, 0)
    head = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data))
    return b"RIFF" + struct.pack("<I", len(head) + len(data)) + head + data


def reordered() -> bytes:
    data = encode_wav(make_audio(5))
    return data[:12] + data[36:] + data[12:36]


def sized(size: int) -> bytes:
    data = encode_wav(make_audio(5))
    return data[:40] + struct.pack("<I", size) + data[44:]


def chunked(chunk: bytes) -> bytes:
    data = encode_wav(make_audio(5))
    return data[:36] + chunk + data[36:]


@each_row("name", HARMLESS)
def test_what_joiners_and_recorders_do_is_heard(name: str) -> None:
    make, expected = HARMLESS[name]
    seconds, frequency, _ = hear(make())
    assert seconds == pytest.approx(expected, abs=0.2)
    assert frequency == pytest.approx(440, abs=25)  # make_audio(5) has 420 Hz


DAMAGED: dict[str, tuple[Callable[[], bytes], float]] = {
    "mp3 with a zeroed frame": (lambda: zeroed(read("lame.mp3"), 0.5, 216), 0.9),
    "mp3 with junk": (lambda: with_junk(read("lame.mp3"), 0.5, 40), 0.85),
    "mp3 behind many zeros": (lambda: bytes(70_000) + read("lame.mp3") * 14, 14.5),
    "flac that states too much": (lambda: stated_longer(read("flac.flac")), 1.0),
    "mp3 behind zeros": (lambda: bytes(500) + read("lame.mp3"), 1.0),
    "aac with junk": (lambda: with_junk(read("ffmpeg.aac"), 0.5, 40), 0.9),
    "aac with lost bytes": (lambda: read("ffmpeg.aac")[:1500] + read("ffmpeg.aac")[1700:], 0.8),
    "opus with a flipped byte": (lambda: flipped(read("opusenc.opus"), 0.7), 0.8),
    "opus with a lost part": (lambda: read("opusenc.opus")[:1200] + read("opusenc.opus")[1400:], 0.7),
    "flac with a flipped byte": (lambda: flipped(read("flac.flac"), 0.6), 0.5),
    "flac with zeros": (lambda: zeroed(read("flac.flac"), 0.6, 60), 0.5),
    "flac that is cut off": (lambda: read("flac.flac")[: len(read("flac.flac")) * 3 // 4], 0.5),
    "m4a with damaged samples": (lambda: zeroed(read("phone.m4a"), 0.5, 60), 0.8),
    "streamed mp4 with damaged samples": (lambda: zeroed(read("streamed.mp4"), 0.6, 60), 0.8),
    "webm with a lost part": (lambda: read("streamed.webm")[:1200] + read("streamed.webm")[1400:], 0.3),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_skipped_and_reported(name: str) -> None:
    make, least = DAMAGED[name]
    seconds, frequency, damage = hear(make())
    assert least <= seconds <= max(1.15, least * 1.1)
    assert frequency == pytest.approx(440, abs=5)
    assert 0 < damage <= 0.75


IN_PIECES = {"movflags": "frag_keyframe+empty_moov+default_base_moof+frag_discont", "use_editlist": "0"}


@pytest.mark.parametrize(
    ("form", "codec", "options"),
    [
        ("ogg", "libopus", {}),
        ("ogg", "flac", {}),
        ("webm", "libopus", {}),
        ("matroska", "aac", {}),
        ("mp4", "aac", IN_PIECES),
    ],
)
@pytest.mark.parametrize("begin_s", ["0.5", "7", "50", "4000"])
def test_a_piece_of_a_longer_recording_is_as_long_as_it_is(
    form: str, codec: str, options: dict[str, str], begin_s: str
) -> None:
    """Its times go on from those of the recording, as in what is cut from a broadcast."""
    samples = make_audio(5, seconds=5.0, rate_hz=48_000)
    data = encode_audio(form, codec, samples, 48_000, {**options, "output_ts_offset": begin_s})
    header = read_header(data, "audio")
    assert isinstance(header, AudioHeader)
    assert not header.seconds or header.seconds == pytest.approx(5.0, abs=0.6)
    seconds, frequency, damage = hear(data)
    assert seconds == pytest.approx(5.0, abs=0.1)
    assert frequency == pytest.approx(420, abs=3)
    assert damage < 0.1


def test_tags_of_every_kind_are_no_damage() -> None:
    """An APE tag has a header, an end, or both. mp3gain writes the end alone."""
    items = bytes(3000)
    footer = APE[:12] + struct.pack("<I", 32 + len(items)) + APE[16:]
    plain = footer[:23] + b"\0" + footer[24:]
    for tags in (footer[:23] + b"\xa0" + footer[24:] + items + footer, items + plain, ID3V1, items + plain + ID3V1):
        assert hear(read("lame.mp3") + tags)[2] < 0.05  # the frame before a tag without header may be part of it


@pytest.mark.parametrize("form", ["wav", "mp3", "opus", "flac", "aac"])
def test_what_the_gateway_speaks_can_be_sent_back(form: str) -> None:
    """Streamed, its WAV and FLAC do not state their length."""
    pcm = (make_audio(5, rate_hz=24_000) * 32768).astype("<i2").tobytes()
    encoder = make_encoder(form, 24_000, 1)
    streamed = b"".join([*(encoder.encode(pcm[at : at + 9600]) for at in range(0, len(pcm), 9600)), encoder.finish()])
    for data in (streamed, encode_whole(form, pcm, 24_000, 1)):
        seconds, frequency, damage = hear(data)
        assert seconds == pytest.approx(1.0, abs=0.11)
        assert frequency == pytest.approx(420, abs=3)
        assert damage == 0


def test_wav_and_flac_are_heard_sample_by_sample() -> None:
    """FFmpeg and libsndfile give the same samples."""
    for subtype in ("PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"):
        file = io.BytesIO()
        soundfile.write(file, np.stack([make_audio(1), make_audio(2)], axis=1), HZ, format="WAV", subtype=subtype)
        expected = soundfile.read(io.BytesIO(file.getvalue()), dtype="float32")[0].mean(axis=1, dtype=np.float32)
        room = np.zeros(HZ, np.float32)
        assert decode_audio(file.getvalue(), "audio/wav", AudioRules(HZ, 1.0, 192_000, 8), room) == (HZ, 0.0)
        np.testing.assert_allclose(room, expected, atol=1e-7)


@pytest.mark.parametrize("name", ["lame.mp3", "opusenc.opus", "oggenc.ogg", "flac.flac", "streamed.webm"])
def test_mostly_damaged_files_are_refused(name: str) -> None:
    data = read(name)
    with pytest.raises((UndecodableError, FFmpegError)):
        hear(data[: len(data) // 8] + random.Random(2).randbytes(len(data) * 7 // 8))


def wav_of(tag: int, channels: int, bits: int, align: int, samples: bytes, valid: int | None = None) -> bytes:
    """Returns a WAV at HZ; with `valid`, of the extensible form, whose samples use so many bits."""
    form = struct.pack("<HHIIHH", 0xFFFE if valid else tag, channels, HZ, HZ * align, align, bits)
    if valid is not None:
        form += struct.pack("<HHIH", 22, valid, 0, tag) + bytes.fromhex("000000001000800000aa00389b71")
    chunks = b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


TONE = make_audio(5)
WORDS = (TONE * (1 << 23)).astype("<i4") << 8
"""24 bits in 32: the lower 8 are zero."""
SHORT = (TONE * 32767).astype("<i2").tobytes()
DS64 = b"ds64" + struct.pack("<IQQQI", 28, 32_072, 32_000, HZ, 0)


@each_row(
    "data",
    [
        wav_of(1, 1, 24, 4, WORDS.tobytes()),
        wav_of(1, 2, 24, 8, np.repeat(WORDS, 2).tobytes()),
        wav_of(1, 1, 20, 4, WORDS.tobytes()),
        wav_of(1, 1, 32, 4, WORDS.tobytes(), valid=24),
        wav_of(1, 2, 32, 8, np.repeat(WORDS, 2).tobytes(), valid=20),
        wav_of(1, 1, 32, 4, (WORDS >> 16 << 16).tobytes(), valid=16),
        wav_of(1, 1, 24, 4, WORDS.tobytes(), valid=24),
        wav_of(1, 1, 24, 3, WORDS.view(np.uint8).reshape(-1, 4)[:, 1:].tobytes(), valid=20),
        wav_of(1, 2, 16, 2, np.repeat(TONE * 32767, 2).astype("<i2").tobytes()),
        wav_of(1, 1, 16, 16, SHORT),
        b"BW64\xff\xff\xff\xffWAVEds64"
        + struct.pack("<IQQQI", 28, 32_072, 32_000, HZ, 0)
        + wav_of(1, 1, 16, 2, SHORT)[12:],
        wav_of(1, 1, 32, 4, WORDS.tobytes(), valid=24) * 2,
    ],
)
def test_wavs_of_words_with_unused_bits_and_wrong_sizes_are_heard(data: bytes) -> None:
    """As libsndfile reads most of them. FFmpeg takes 24 bits in 32 for numbers with a fraction."""
    header = read_header(data, "audio")
    assert isinstance(header, AudioHeader)
    room = np.zeros(3 * HZ, np.float32)
    count, damage = decode_audio(data, "audio/wav", AudioRules(HZ, header.seconds, 192_000, 8), room)
    assert count in (TONE.size, 2 * TONE.size)
    assert damage == 0
    np.testing.assert_allclose(room[: TONE.size], TONE, atol=1e-3)


def test_a_law_says_of_how_many_bits_it_was_packed() -> None:
    packed = io.BytesIO()
    soundfile.write(packed, TONE, HZ, format="RAW", subtype="ULAW")
    for bits in (0, 8, 16):
        seconds, frequency, _ = hear(wav_of(7, 1, bits, 1, packed.getvalue()))
        assert (seconds, round(frequency)) == (1.0, 420)
