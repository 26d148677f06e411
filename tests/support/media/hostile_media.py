"""Images, audio and video that a hostile client may send, and whether each is rejected or accepted.

Among them are decompression bombs, false headers, damaged files and unusual formats.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from PIL import Image

from omni_stage.service.media.slots import MediaKind
from support.media.audios import COMPRESSED, encode_tone
from support.media.hostile_files import (
    FRAGMENTS,
    animated,
    chunk,
    deep,
    flac,
    flat_png,
    floats,
    fragments,
    icc,
    lasting,
    many_boxes,
    many_scans,
    mostly_damaged,
    on_its_side,
    opus,
    photo,
    resized_jpeg,
    save,
    sized_gif,
    sized_mp4,
    sized_webp,
    text_bomb,
    timed,
    twice_sized_jpeg,
    wav,
    with_frames,
)
from support.media.samples import encode_png, encode_wav, make_audio, make_image
from support.media.videos import encode_tracks, encode_video

IMAGE: MediaKind = "image"
AUDIO: MediaKind = "audio"
VIDEO: MediaKind = "video"
REFUSED = "refused by its header"
UNDECODABLE = "refused by the decoder"
TAKEN = "taken"
PIXELS, RATE = "maxImagePixels", "maxAudioRateHz"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One image, audio clip or video."""

    name: str
    kind: MediaKind
    make: Callable[[], bytes]
    fate: str
    """REFUSED, UNDECODABLE or TAKEN."""
    says: str = ""
    """A part of the error message."""


VIDEOS: tuple[Hostile, ...] = (
    Hostile("mp4 of h264 and aac", VIDEO, encode_video, TAKEN),
    Hostile("silent mp4", VIDEO, lambda: encode_video(audio=None), TAKEN),
    Hostile("webm of vp9 and opus", VIDEO, lambda: encode_video("webm", "libvpx-vp9", "libopus"), TAKEN),
    Hostile("matroska of h264 and opus", VIDEO, lambda: encode_video("matroska", "libx264", "libopus"), TAKEN),
    Hostile("quicktime of mpeg4 and aac", VIDEO, lambda: encode_video("mov", "mpeg4"), TAKEN),
    Hostile("mp4 of odd sizes", VIDEO, lambda: encode_video(width=162, height=34, audio=None), TAKEN),
    Hostile("mp4 of 3840 x 2160", VIDEO, lambda: encode_video(frames=2, width=3840, height=2160, audio=None), TAKEN),
    Hostile(
        "matroska of frames at any time",
        VIDEO,
        lambda: encode_video("matroska", audio=None, frames=6, times=[0, 1, 2, 900, 1800, 5000]),
        TAKEN,
    ),
    Hostile("mp4 of 5 s that says 0.5", VIDEO, lambda: lasting(5, said=0.5), TAKEN),
    Hostile("mp4 of 1 s that says 50", VIDEO, lambda: lasting(1, said=50), TAKEN),
    Hostile("mp4 of 1 s that says 2 hours", VIDEO, lambda: lasting(1, said=7200), REFUSED, "maxVideoSeconds"),
    Hostile("mp4 that says it has no length", VIDEO, lambda: lasting(1, said=0), REFUSED, "how long"),
    Hostile("mp4 that says 65,535 x 65,535", VIDEO, lambda: sized_mp4(65_535, 65_535), REFUSED, "maxVideoPixels"),
    Hostile("mp4 that says it is smaller", VIDEO, lambda: sized_mp4(16, 16), TAKEN),
    Hostile("mp4 that says it has no size", VIDEO, lambda: sized_mp4(0, 0), REFUSED, "how large"),
    Hostile("mp4 of one frame", VIDEO, lambda: encode_video(frames=1, audio=None), REFUSED, "one frame"),
    Hostile("webm of one frame", VIDEO, lambda: encode_video("webm", "libvpx-vp9", None, frames=1), UNDECODABLE, "two"),
    Hostile(
        "mp4 of 8,000 frames",
        VIDEO,
        lambda: encode_video(frames=8000, fps=1000, width=16, height=16, audio=None, picture="mpeg4"),
        REFUSED,
        "maxVideoFrames",
    ),
    Hostile("mp4 in fragments", VIDEO, lambda: encode_video(options=FRAGMENTS), TAKEN),
    Hostile("mp4 in fragments, 70 s", VIDEO, lambda: fragments(70), REFUSED, "maxVideoSeconds"),
    Hostile(
        "webm that was streamed",
        VIDEO,
        lambda: encode_video("webm", "libvpx-vp9", "libopus", options={"live": "1"}),
        TAKEN,
    ),
    Hostile("webm of nothing", VIDEO, lambda: b"\x1a\x45\xdf\xa3" + b"\x1f\x43\xb6\x75\xff" * 9000, REFUSED),
    Hostile("matroska that is cut off", VIDEO, lambda: encode_video("matroska")[:90_000], TAKEN),
    Hostile("mp4 without its index", VIDEO, lambda: encode_video(frames=60)[:9000], REFUSED, "no picture track"),
    Hostile(
        "webm that is cut off", VIDEO, lambda: encode_video("webm", "libvpx-vp9", "libopus")[:6000], UNDECODABLE, "two"
    ),
    Hostile("mp4 of 5,000 boxes", VIDEO, many_boxes, REFUSED, "sections"),
    Hostile("matroska of 17 tracks", VIDEO, lambda: encode_tracks(17), REFUSED, "tracks"),
    Hostile("matroska of sound alone", VIDEO, lambda: encode_tracks(1), REFUSED, "no picture track"),
    Hostile("matroska of ffv1", VIDEO, lambda: encode_video("matroska", "ffv1", None), UNDECODABLE, "codec"),
    Hostile("animated gif as video", VIDEO, lambda: animated("GIF"), REFUSED, "not MP4"),
    Hostile("sound as video", VIDEO, lambda: encode_wav(make_audio()), REFUSED, "not MP4"),
    Hostile("video as image", IMAGE, encode_video, REFUSED, "not PNG"),
    Hostile("mp4 of nothing", VIDEO, lambda: b"\0\0\0\x18ftypisom" + bytes(400), REFUSED, "no picture track"),
)


def silent_wav(rate_hz: int) -> bytes:
    """Returns half a second of silence, but at least one sample."""
    return wav(rate_hz, 1, bytes(max(2, rate_hz // 2 * 2)))


CORPUS: tuple[Hostile, ...] = (
    Hostile("png bomb of 33 million pixels", IMAGE, lambda: flat_png(8192, 4096), REFUSED, PIXELS),
    Hostile("png of 60,000 x 60,000 without pixels", IMAGE, lambda: flat_png(60_000, 60_000, rows=0), REFUSED, PIXELS),
    Hostile("png of 2^31 - 1 squared", IMAGE, lambda: flat_png(2**31 - 1, 2**31 - 1, rows=0, bits=1), REFUSED, PIXELS),
    Hostile("png of 65,535 x 65,535", IMAGE, lambda: flat_png(65_535, 65_535, rows=0), REFUSED, PIXELS),
    Hostile("png without width", IMAGE, lambda: flat_png(0, 5), REFUSED, "size"),
    Hostile("png of one pixel", IMAGE, lambda: flat_png(1, 1, bits=8), TAKEN),
    Hostile("png of 65,535 x 1", IMAGE, lambda: flat_png(65_535, 1), TAKEN),
    Hostile("png of 1 x 65,535", IMAGE, lambda: flat_png(1, 65_535), TAKEN),
    Hostile("png at the cap", IMAGE, lambda: flat_png(4096, 4096), TAKEN),
    Hostile("png of rgba at the cap", IMAGE, lambda: flat_png(4096, 4096, bits=8, colour=6), TAKEN),
    Hostile("png with fewer rows than it says", IMAGE, lambda: flat_png(4096, 4096, rows=1), TAKEN),
    Hostile("png that is cut off", IMAGE, lambda: encode_png(make_image())[:-500], UNDECODABLE),
    Hostile("png of its first bytes", IMAGE, lambda: encode_png(make_image())[:20], REFUSED, "cut off"),
    Hostile(
        "png that tells its size twice",
        IMAGE,
        lambda: flat_png(8, 8, before=chunk(b"IHDR", struct.pack(">IIBBBBB", 9000, 9000, 8, 2, 0, 0, 0))),
        REFUSED,
        "twice",
    ),
    Hostile(
        "png of 5,000 chunks", IMAGE, lambda: flat_png(8, 8, before=chunk(b"prIv", b"") * 5000), REFUSED, "sections"
    ),
    Hostile("png with 32 MiB of text in 32 kB", IMAGE, text_bomb, TAKEN),
    Hostile("animated png", IMAGE, lambda: animated("PNG"), TAKEN),
    Hostile("animated gif", IMAGE, lambda: animated("GIF"), TAKEN),
    Hostile("animated webp", IMAGE, lambda: animated("WEBP"), TAKEN),
    Hostile("gif at the cap", IMAGE, lambda: save(Image.new("P", (4096, 4096)), "GIF"), TAKEN),
    Hostile("gif of 65,535 x 65,535", IMAGE, lambda: sized_gif(65_535, 65_535), REFUSED, PIXELS),
    Hostile("gif of a frame beyond its canvas", IMAGE, lambda: sized_gif(8, 8), TAKEN),
    Hostile("gif without a picture", IMAGE, lambda: save(make_image(), "GIF")[:30] + bytes(9000), REFUSED),
    Hostile("gif of 5,000 extensions", IMAGE, lambda: b"GIF89a\1\0\1\0\0\0\0" + b"!\xfe\0" * 5000, REFUSED, "sections"),
    Hostile("webp", IMAGE, lambda: save(make_image(), "WEBP"), TAKEN),
    Hostile("webp at the cap", IMAGE, lambda: save(Image.new("RGBA", (4096, 4096)), "WEBP", lossless=True), TAKEN),
    Hostile("webp of 16,384 x 16,384", IMAGE, lambda: sized_webp(16_384, 16_384), REFUSED, PIXELS),
    Hostile("webp that says it is smaller", IMAGE, lambda: sized_webp(8, 8), UNDECODABLE),
    Hostile("webp that is cut off", IMAGE, lambda: save(make_image(), "WEBP")[:500], UNDECODABLE),
    Hostile("png of 16 bit grey", IMAGE, deep(0), TAKEN),
    Hostile("png of 16 bit rgb", IMAGE, deep(2), TAKEN),
    Hostile("png of 16 bit rgba", IMAGE, deep(6), TAKEN),
    Hostile("png with a palette that is missing", IMAGE, deep(3, 8), TAKEN),
    Hostile("jpeg", IMAGE, photo, TAKEN),
    Hostile("progressive jpeg", IMAGE, lambda: photo(progressive=True), TAKEN),
    Hostile("jpeg of cmyk", IMAGE, lambda: save(make_image().convert("CMYK"), "JPEG"), TAKEN),
    Hostile(
        "progressive jpeg of cmyk at the cap",
        IMAGE,
        lambda: save(Image.new("CMYK", (4096, 4096)), "JPEG", progressive=True),
        TAKEN,
    ),
    Hostile("jpeg at the cap, on its side", IMAGE, lambda: on_its_side(Image.new("RGB", (4096, 4000))), TAKEN),
    Hostile("jpeg of grey", IMAGE, lambda: save(make_image().convert("L"), "JPEG"), TAKEN),
    Hostile("jpeg on its side, with much exif", IMAGE, lambda: on_its_side(make_image(), "x" * 60_000), TAKEN),
    Hostile("jpeg with a colour profile", IMAGE, icc, TAKEN),
    Hostile("jpeg of 65,500 x 65,500", IMAGE, lambda: resized_jpeg(65_500, 65_500), REFUSED, PIXELS),
    Hostile("jpeg that says it is larger", IMAGE, lambda: resized_jpeg(4000, 4000), UNDECODABLE, "cut off"),
    Hostile("jpeg without height", IMAGE, lambda: resized_jpeg(100, 0), REFUSED, "height"),
    Hostile("jpeg of 60 additional scans", IMAGE, lambda: many_scans(60), REFUSED, "maxImageScans"),
    Hostile("jpeg of 3,500 scans", IMAGE, lambda: many_scans(3500), REFUSED, "maxImageScans"),
    Hostile("jpeg of 40,000 scans", IMAGE, lambda: many_scans(40_000), REFUSED, "sections"),
    Hostile("jpeg that tells its size twice", IMAGE, twice_sized_jpeg, REFUSED, "twice"),
    Hostile("jpeg of nothing but markers", IMAGE, lambda: b"\xff\xd8" + b"\xff" * 100_000, REFUSED, "no picture"),
    Hostile("jpeg that is cut off", IMAGE, lambda: photo()[:700], UNDECODABLE),
    Hostile("jpeg and a zip file", IMAGE, lambda: photo() + b"PK\x03\x04" + bytes(5000), TAKEN),
    Hostile("jpeg and a jpeg", IMAGE, lambda: photo() * 3, TAKEN),
    Hostile("gif", IMAGE, lambda: save(make_image(), "GIF"), TAKEN),
    Hostile("tiff", IMAGE, lambda: save(make_image(), "TIFF"), REFUSED, "not PNG"),
    Hostile("eps", IMAGE, lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", REFUSED, "not PNG"),
    Hostile("sound as image", IMAGE, lambda: encode_wav(make_audio()), REFUSED, "not PNG"),
    Hostile("image as sound", AUDIO, lambda: encode_png(make_image()), REFUSED, "not WAV"),
    Hostile("wav", AUDIO, lambda: encode_wav(make_audio()), TAKEN),
    *(
        Hostile(f"wav of {rate:,} Hz", AUDIO, partial(silent_wav, rate), REFUSED, RATE)
        for rate in (1, 7, 3_999, 192_001, 383_999, 1_000_000)
    ),
    *(
        Hostile(f"wav of {rate:,} Hz", AUDIO, partial(silent_wav, rate), TAKEN)
        for rate in (4_000, 8_001, 11_027, 16_001, 44_101, 191_999, 192_000)
    ),
    Hostile("wav without rate", AUDIO, lambda: wav(0, 1, bytes(2000)), REFUSED, "no sense"),
    Hostile("wav of 9 channels", AUDIO, lambda: wav(16_000, 9, bytes(18_000)), REFUSED, "maxAudioChannels"),
    Hostile("wav of 30,000 channels", AUDIO, lambda: wav(16_000, 30_000, bytes(60_000)), REFUSED, "maxAudioChannels"),
    Hostile("wav of 8 channels", AUDIO, lambda: wav(16_000, 8, bytes(160_000)), TAKEN),
    Hostile("wav of 301 s", AUDIO, lambda: wav(4_000, 1, bytes(301 * 8_000)), REFUSED, "maxAudioSeconds"),
    Hostile("wav without samples", AUDIO, lambda: wav(16_000, 1, b""), REFUSED, "no samples"),
    Hostile("wav that says it is longer", AUDIO, lambda: wav(16_000, 1, bytes(3200), said=0x7FFFFFF0), TAKEN),
    Hostile("wav that says it is shorter", AUDIO, lambda: wav(16_000, 1, bytes(3200), said=1600), TAKEN),
    Hostile("wav of NaN", AUDIO, lambda: wav(16_000, 1, floats(float("nan")), tag=3, bits=32), UNDECODABLE, "no p"),
    Hostile(
        "wav of infinity",
        AUDIO,
        lambda: wav(16_000, 1, floats(float("inf"), 0), tag=3, bits=32),
        UNDECODABLE,
        "no part",
    ),
    Hostile("wav of huge floats", AUDIO, lambda: wav(16_000, 1, floats(3e38, -3e38), tag=3, bits=32), TAKEN),
    Hostile("wav of an mp3 without a frame", AUDIO, lambda: wav(16_000, 1, bytes(4000), tag=0x55), UNDECODABLE),
    Hostile(
        "wav in a form that nobody plays", AUDIO, lambda: wav(16_000, 1, bytes(4000), tag=0x7777), REFUSED, "compressed"
    ),
    Hostile(
        "wav of 5,000 chunks", AUDIO, lambda: wav(16_000, 1, b"")[:12] + b"junk\0\0\0\0" * 5000, REFUSED, "sections"
    ),
    Hostile("wav that is cut off", AUDIO, lambda: encode_wav(make_audio())[:20], REFUSED),
    Hostile("wav with an exe behind it", AUDIO, lambda: encode_wav(make_audio()) + b"MZ" + bytes(9000), TAKEN),
    Hostile("flac of 300 s of silence", AUDIO, lambda: flac(300), TAKEN),
    Hostile("flac of 12 minutes of silence", AUDIO, lambda: flac(720, 16_000), REFUSED, "maxAudioSeconds"),
    Hostile("flac of 8 channels at 192 kHz, 40 s", AUDIO, lambda: flac(40, 192_000, 8), TAKEN),
    Hostile("flac of 8 channels at 192 kHz, 60 s", AUDIO, lambda: flac(60, 192_000, 8), REFUSED, "maxDecodedBytes"),
    Hostile("flac that does not say how long it is", AUDIO, lambda: with_frames(flac(5), 0), TAKEN),
    Hostile(
        "flac of 12 minutes that does not say so",
        AUDIO,
        lambda: with_frames(flac(720, 16_000), 0),
        UNDECODABLE,
        "longer than the 300 s",
    ),
    Hostile(
        "flac of 12 minutes that says 1 s",
        AUDIO,
        lambda: with_frames(flac(720, 16_000), 16_000),
        UNDECODABLE,
        "header states",
    ),
    Hostile("flac that says it is longer", AUDIO, lambda: with_frames(flac(1), 10_000_000), TAKEN),
    Hostile("flac that is cut off", AUDIO, lambda: flac(300)[:400], TAKEN),
    Hostile("flac of its first bytes", AUDIO, lambda: flac(1)[:20], REFUSED, "cut off"),
    Hostile("300 flac files in one", AUDIO, lambda: flac(0.1) * 300, REFUSED, "joined"),
    Hostile("wav of 3 s and 20 joined", AUDIO, lambda: encode_wav(make_audio(seconds=3)) * 21, TAKEN),
    Hostile("ogg", AUDIO, lambda: b"OggS" + bytes(100), REFUSED, "no beginning"),
    Hostile("ogg of 100,000 pages", AUDIO, lambda: opus(1) + (b"OggS" + bytes(22)) * 100_000, REFUSED, "pages"),
    Hostile("ogg of 100,000 beginnings", AUDIO, lambda: (b"OggS\0\2" + bytes(22)) * 100_000, REFUSED, "joined"),
    Hostile("opus of 5 minutes of silence", AUDIO, lambda: opus(299), TAKEN),
    Hostile("opus of 12 minutes of silence", AUDIO, lambda: opus(720), REFUSED, "maxAudioSeconds"),
    Hostile(
        "opus of 12 minutes that says 1 s",
        AUDIO,
        lambda: timed(opus(720), lambda end: end // 720),
        UNDECODABLE,
        "header states",
    ),
    Hostile("opus without time", AUDIO, lambda: timed(opus(720), lambda _: 48_000), UNDECODABLE, "the 300 s"),
    *(Hostile(f"{codec} in {form}", AUDIO, partial(encode_tone, form, codec), TAKEN) for form, codec in COMPRESSED),
    Hostile("mp3 of 12 minutes", AUDIO, lambda: encode_tone("mp3", "libmp3lame") * 720, UNDECODABLE, "300 s"),
    Hostile("aac of 12 minutes", AUDIO, lambda: encode_tone("adts", "aac") * 720, UNDECODABLE, "300 s"),
    Hostile("mp3 without frames", AUDIO, lambda: b"ID3\3\0\0\0\0\0\0" + bytes(5000), REFUSED, "not WAV"),
    Hostile("nothing but synchronization", AUDIO, lambda: b"\xff" * 1_000_000, REFUSED, "not WAV"),
    Hostile("mp3 that is mostly damaged", AUDIO, mostly_damaged, UNDECODABLE, "damaged"),
    Hostile("m4a of a codec of pictures", AUDIO, lambda: encode_video(audio=None), UNDECODABLE, "no audio track"),
    Hostile("video as sound", AUDIO, encode_video, TAKEN),
    *VIDEOS,
    Hostile("nothing known", AUDIO, lambda: bytes(100), REFUSED, "not WAV"),
)


def taken() -> Iterator[Hostile]:
    """Returns an iterator over the media that reach the decoder because their header is accepted."""
    return (medium for medium in CORPUS if medium.fate != REFUSED)
