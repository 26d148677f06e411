"""Images and sounds that try to do harm, made by code: bombs, lies, damage, odd forms. Each with its fate."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import soundfile
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from omni_stage.service.media.kinds import MediaKind
from support.media import encode_png, encode_wav, make_image, make_sound
from support.videos import encode_tracks, encode_video

IMAGE: MediaKind = "image"
AUDIO: MediaKind = "audio"
VIDEO: MediaKind = "video"
REFUSED = "refused by its header"
UNDECODABLE = "refused by the decoder"
TAKEN = "taken"
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
PIXELS, RATE = "maxImagePixels", "maxAudioRateHz"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One medium."""

    name: str
    kind: MediaKind
    make: Callable[[], bytes]
    fate: str
    """REFUSED, UNDECODABLE or TAKEN."""
    says: str = ""
    """A part of the error."""


def chunk(kind: bytes, data: bytes) -> bytes:
    """Of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def flat_png(
    width: int, height: int, *, bits: int = 1, colour: int = 0, before: bytes = b"", rows: int | None = None
) -> bytes:
    """Returns a PNG of one colour: a deflate stream of zeros, however large it says it is."""
    line = 1 + -(-width * bits * {0: 1, 2: 3, 3: 1, 6: 4}[colour] // 8)
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(line)) for _ in range(height if rows is None else rows)) + packer.flush()
    head = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + before + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def save(image: Image.Image, form: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def many_scans(scans: int, side: int = 2048) -> bytes:
    """Returns a progressive JPEG whose scans refine nothing: about 20 bytes each, a pass over the picture each."""
    base = save(Image.new("L", (side, side)), "JPEG", progressive=True)
    scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 5, 0) + b"\x00" * 4
    return base[:-2] + scan * scans + b"\xff\xd9"


def resized_jpeg(width: int, height: int) -> bytes:
    """Returns a JPEG of 8 x 8 pixels that says that it has others."""
    data = bytearray(save(Image.new("RGB", (8, 8)), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def twice_sized_jpeg() -> bytes:
    data = save(make_image(), "JPEG")
    at = data.index(b"\xff\xc0")
    frame = data[at : at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]]
    return data[:at] + frame + data[at:]


def animated(frames: int) -> bytes:
    pictures = [make_image(seed) for seed in range(frames)]
    return save(pictures[0], "PNG", save_all=True, append_images=pictures[1:])


def wav(rate_hz: int, channels: int, data: bytes, *, tag: int = 1, bits: int = 16, said: int | None = None) -> bytes:
    align = channels * bits // 8
    layout = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    size = len(data) if said is None else said
    body = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFFFFFF) + body


def flac(seconds: float, rate_hz: int = 48_000, channels: int = 1) -> bytes:
    """Silence: 300 s are about 3 kB."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((int(seconds * rate_hz), channels), np.int16), rate_hz, format="FLAC")
    return buffer.getvalue()


def with_frames(data: bytes, frames: int) -> bytes:
    """Returns a FLAC whose header says so many samples."""
    (packed,) = struct.unpack_from(">Q", data, 18)
    return data[:18] + struct.pack(">Q", packed >> 36 << 36 | frames) + data[26:]


def floats(*values: float) -> bytes:
    return np.array(values * 2000, "<f4").tobytes()


def photo(**options: object) -> bytes:
    return save(make_image(), "JPEG", **options)


def exif() -> bytes:
    tags = Image.Exif()
    tags[0x0112] = 6
    tags[0x010E] = "x" * 60_000
    return photo(exif=tags)


def icc() -> bytes:
    return photo(icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())


def text_bomb() -> bytes:
    info = PngInfo()
    info.add_text("Comment", "\0" * (32 << 20), zip=True)
    return save(make_image(), "PNG", pnginfo=info)


def deep(colour: int, bits: int = 16) -> Callable[[], bytes]:
    return lambda: flat_png(64, 64, bits=bits, colour=colour)


def patched(data: bytes, mark: bytes, at: int, value: bytes) -> bytes:
    """Returns a file with bytes written over it, `at` behind the first mark."""
    place = data.index(mark) + len(mark) + at
    return data[:place] + value + data[place + len(value) :]


def lasting(seconds: float, *, said: float) -> bytes:
    """Returns an MP4 of another length than it says in all its clocks."""
    data = encode_video(frames=int(seconds * 10), sound=None)
    for mark in (b"mvhd", b"mdhd"):
        scale = int.from_bytes(data[data.index(mark) + 16 : data.index(mark) + 20], "big")
        data = patched(data, mark, 16, struct.pack(">I", int(said * scale)))
    return data


def many_boxes() -> bytes:
    return struct.pack(">I4sI4s", 16, b"ftyp", 0, b"isom")[:16] + struct.pack(">I4s", 8, b"free") * 5000


def sized_mp4(width: int, height: int) -> bytes:
    """Returns an MP4 of 160 x 120 whose sample description says otherwise."""
    return patched(encode_video(sound=None), b"stsd", 40, struct.pack(">HH", width, height))


def animated_gif() -> bytes:
    pictures = [make_image(seed) for seed in range(3)]
    return save(pictures[0], "GIF", save_all=True, append_images=pictures[1:])


VIDEOS: tuple[Hostile, ...] = (
    Hostile("mp4 of h264 and aac", VIDEO, encode_video, TAKEN),
    Hostile("silent mp4", VIDEO, lambda: encode_video(sound=None), TAKEN),
    Hostile("webm of vp9 and opus", VIDEO, lambda: encode_video("webm", "libvpx-vp9", "libopus"), TAKEN),
    Hostile("matroska of h264 and opus", VIDEO, lambda: encode_video("matroska", "libx264", "libopus"), TAKEN),
    Hostile("quicktime of mpeg4 and aac", VIDEO, lambda: encode_video("mov", "mpeg4"), TAKEN),
    Hostile("mp4 of odd sizes", VIDEO, lambda: encode_video(width=162, height=34, sound=None), TAKEN),
    Hostile("mp4 of 3840 x 2160", VIDEO, lambda: encode_video(frames=2, width=3840, height=2160, sound=None), TAKEN),
    Hostile(
        "matroska of frames at any time",
        VIDEO,
        lambda: encode_video("matroska", sound=None, frames=6, times=[0, 1, 2, 900, 1800, 5000]),
        TAKEN,
    ),
    Hostile("mp4 of 5 s that says 0.5", VIDEO, lambda: lasting(5, said=0.5), TAKEN),
    Hostile("mp4 of 1 s that says 50", VIDEO, lambda: lasting(1, said=50), TAKEN),
    Hostile("mp4 of 1 s that says 2 hours", VIDEO, lambda: lasting(1, said=7200), REFUSED, "maxVideoSeconds"),
    Hostile("mp4 that says it has no length", VIDEO, lambda: lasting(1, said=0), REFUSED, "how long"),
    Hostile("mp4 that says 65,535 x 65,535", VIDEO, lambda: sized_mp4(65_535, 65_535), REFUSED, "maxVideoPixels"),
    Hostile("mp4 that says it is smaller", VIDEO, lambda: sized_mp4(16, 16), TAKEN),
    Hostile("mp4 that says it has no size", VIDEO, lambda: sized_mp4(0, 0), REFUSED, "how large"),
    Hostile("mp4 of one frame", VIDEO, lambda: encode_video(frames=1, sound=None), REFUSED, "one frame"),
    Hostile("webm of one frame", VIDEO, lambda: encode_video("webm", "libvpx-vp9", None, frames=1), UNDECODABLE, "two"),
    Hostile(
        "mp4 of 8,000 frames",
        VIDEO,
        lambda: encode_video(frames=8000, fps=1000, width=16, height=16, sound=None, picture="mpeg4"),
        REFUSED,
        "maxVideoFrames",
    ),
    Hostile("mp4 in fragments", VIDEO, lambda: encode_video(options=FRAGMENTS), REFUSED, "how long"),
    Hostile("matroska that is cut off", VIDEO, lambda: encode_video("matroska")[:90_000], TAKEN),
    Hostile("mp4 without its index", VIDEO, lambda: encode_video(frames=60)[:9000], REFUSED, "no picture track"),
    Hostile(
        "webm that is cut off", VIDEO, lambda: encode_video("webm", "libvpx-vp9", "libopus")[:6000], UNDECODABLE, "two"
    ),
    Hostile("mp4 of 5,000 boxes", VIDEO, many_boxes, REFUSED, "sections"),
    Hostile("matroska of 17 tracks", VIDEO, lambda: encode_tracks(17), REFUSED, "tracks"),
    Hostile("matroska of sound alone", VIDEO, lambda: encode_tracks(1), REFUSED, "no picture track"),
    Hostile("matroska of ffv1", VIDEO, lambda: encode_video("matroska", "ffv1", None), UNDECODABLE, "codec"),
    Hostile("animated gif", VIDEO, animated_gif, REFUSED, "no PNG"),
    Hostile("sound as video", VIDEO, lambda: encode_wav(make_sound()), REFUSED, "none of"),
    Hostile("video as image", IMAGE, encode_video, REFUSED, "none of"),
    Hostile("mp4 of nothing", VIDEO, lambda: b"\0\0\0\x18ftypisom" + bytes(400), REFUSED, "no picture track"),
)

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
    Hostile("png with 32 MiB of text in 32 kB", IMAGE, text_bomb, UNDECODABLE),
    Hostile("animated png", IMAGE, lambda: animated(3), REFUSED, "animated"),
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
    Hostile("jpeg of grey", IMAGE, lambda: save(make_image().convert("L"), "JPEG"), TAKEN),
    Hostile("jpeg with exif", IMAGE, exif, TAKEN),
    Hostile("jpeg with a colour profile", IMAGE, icc, TAKEN),
    Hostile("jpeg of 65,500 x 65,500", IMAGE, lambda: resized_jpeg(65_500, 65_500), REFUSED, PIXELS),
    Hostile("jpeg that says it is larger", IMAGE, lambda: resized_jpeg(4000, 4000), TAKEN),
    Hostile("jpeg without height", IMAGE, lambda: resized_jpeg(100, 0), REFUSED, "how high"),
    Hostile("jpeg of 51 scans", IMAGE, lambda: many_scans(60), REFUSED, "maxImageScans"),
    Hostile("jpeg of 3,500 scans", IMAGE, lambda: many_scans(3500), REFUSED, "maxImageScans"),
    Hostile("jpeg of 40,000 scans", IMAGE, lambda: many_scans(40_000), REFUSED, "sections"),
    Hostile("jpeg that tells its size twice", IMAGE, twice_sized_jpeg, REFUSED, "twice"),
    Hostile("jpeg of nothing but markers", IMAGE, lambda: b"\xff\xd8" + b"\xff" * 100_000, REFUSED, "no picture"),
    Hostile("jpeg that is cut off", IMAGE, lambda: photo()[:700], UNDECODABLE),
    Hostile("jpeg and a zip file", IMAGE, lambda: photo() + b"PK\x03\x04" + bytes(5000), TAKEN),
    Hostile("jpeg and a jpeg", IMAGE, lambda: photo() * 3, TAKEN),
    Hostile("gif", IMAGE, lambda: save(make_image(), "GIF"), REFUSED, "no PNG"),
    Hostile("tiff", IMAGE, lambda: save(make_image(), "TIFF"), REFUSED, "no PNG"),
    Hostile("eps", IMAGE, lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", REFUSED, "no PNG"),
    Hostile("sound as image", IMAGE, lambda: encode_wav(make_sound()), REFUSED, "none of"),
    Hostile("image as sound", AUDIO, lambda: encode_png(make_image()), REFUSED, "none of"),
    Hostile("wav", AUDIO, lambda: encode_wav(make_sound()), TAKEN),
    *(
        Hostile(f"wav of {rate:,} Hz", AUDIO, lambda rate=rate: wav(rate, 1, bytes(rate // 2 * 2)), REFUSED, RATE)
        for rate in (1, 7, 3_999, 192_001, 383_999, 1_000_000)
    ),
    *(
        Hostile(f"wav of {rate:,} Hz", AUDIO, lambda rate=rate: wav(rate, 1, bytes(rate // 2 * 2)), TAKEN)
        for rate in (4_000, 8_001, 11_027, 16_001, 44_101, 191_999, 192_000)
    ),
    Hostile("wav without rate", AUDIO, lambda: wav(0, 1, bytes(2000)), REFUSED, "no sense"),
    Hostile("wav of 9 channels", AUDIO, lambda: wav(16_000, 9, bytes(18_000)), REFUSED, "maxAudioChannels"),
    Hostile("wav of 65,535 channels", AUDIO, lambda: wav(16_000, 30_000, bytes(60_000)), REFUSED, "maxAudioChannels"),
    Hostile("wav of 8 channels", AUDIO, lambda: wav(16_000, 8, bytes(160_000)), TAKEN),
    Hostile("wav of 301 s", AUDIO, lambda: wav(4_000, 1, bytes(301 * 8_000)), REFUSED, "maxAudioSeconds"),
    Hostile("wav without samples", AUDIO, lambda: wav(16_000, 1, b""), REFUSED, "empty"),
    Hostile("wav that says it is longer", AUDIO, lambda: wav(16_000, 1, bytes(3200), said=0x7FFFFFF0), TAKEN),
    Hostile("wav that says it is shorter", AUDIO, lambda: wav(16_000, 1, bytes(3200), said=1600), TAKEN),
    Hostile("wav of NaN", AUDIO, lambda: wav(16_000, 1, floats(float("nan")), tag=3, bits=32), UNDECODABLE, "NaN"),
    Hostile(
        "wav of infinity", AUDIO, lambda: wav(16_000, 1, floats(float("inf"), 0), tag=3, bits=32), UNDECODABLE, "NaN"
    ),
    Hostile("wav of huge floats", AUDIO, lambda: wav(16_000, 1, floats(3e38, -3e38), tag=3, bits=32), TAKEN),
    Hostile("wav with mp3 in it", AUDIO, lambda: wav(16_000, 1, bytes(4000), tag=0x55), REFUSED, "compressed"),
    Hostile(
        "wav of 5,000 chunks", AUDIO, lambda: wav(16_000, 1, b"")[:12] + b"junk\0\0\0\0" * 5000, REFUSED, "sections"
    ),
    Hostile("wav that is cut off", AUDIO, lambda: encode_wav(make_sound())[:20], REFUSED),
    Hostile("wav with an exe behind it", AUDIO, lambda: encode_wav(make_sound()) + b"MZ" + bytes(9000), TAKEN),
    Hostile("flac of 300 s of silence", AUDIO, lambda: flac(300), TAKEN),
    Hostile("flac of 12 minutes of silence", AUDIO, lambda: flac(720, 16_000), REFUSED, "maxAudioSeconds"),
    Hostile("flac of 8 channels at 192 kHz, 40 s", AUDIO, lambda: flac(40, 192_000, 8), TAKEN),
    Hostile("flac of 8 channels at 192 kHz, 60 s", AUDIO, lambda: flac(60, 192_000, 8), REFUSED, "maxDecodedBytes"),
    Hostile("flac that does not say how long it is", AUDIO, lambda: with_frames(flac(5), 0), REFUSED, "how long"),
    Hostile(
        "flac of 12 minutes that does not say so",
        AUDIO,
        lambda: with_frames(flac(720, 16_000), 0),
        REFUSED,
        "how long",
    ),
    Hostile("flac of 12 minutes that says 1 s", AUDIO, lambda: with_frames(flac(720, 16_000), 16_000), TAKEN),
    Hostile("flac that says it is longer", AUDIO, lambda: with_frames(flac(1), 10_000_000), UNDECODABLE),
    Hostile("flac that is cut off", AUDIO, lambda: flac(300)[:400], UNDECODABLE),
    Hostile("flac of its first bytes", AUDIO, lambda: flac(1)[:20], REFUSED, "cut off"),
    Hostile("ogg", AUDIO, lambda: b"OggS" + bytes(100), REFUSED, "no PNG"),
    *VIDEOS,
    Hostile("nothing known", AUDIO, lambda: bytes(100), REFUSED, "no PNG"),
)


def taken() -> Iterator[Hostile]:
    """Yields those that pass their header: what the decoder has to bear."""
    return (medium for medium in CORPUS if medium.fate != REFUSED)
