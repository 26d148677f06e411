"""Functions that make hostile and unusual media files."""

from __future__ import annotations

import io
import re
import struct
import zlib
from collections.abc import Callable

import numpy as np
import soundfile
from PIL import ExifTags, Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from support.media.audios import encode_audio
from support.media.samples import make_audio, make_image
from support.media.videos import encode_video

FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}


def chunk(kind: bytes, data: bytes) -> bytes:
    """Returns a chunk of a PNG, with its checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def flat_png(
    width: int, height: int, *, bits: int = 1, colour: int = 0, before: bytes = b"", rows: int | None = None
) -> bytes:
    """Returns a PNG of one colour: a small deflate stream of zeros.

    `rows` is the number of rows in the stream (default: `height`); the header always says `height`.
    """
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
    """Returns a progressive JPEG with `scans` additional scans that refine nothing.

    Each scan has 14 bytes, but makes the decoder pass over the whole picture.
    """
    base = save(Image.new("L", (side, side)), "JPEG", progressive=True)
    scan = b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, 1, 0, 1, 5, 0) + b"\x00" * 4
    return base[:-2] + scan * scans + b"\xff\xd9"


def resized_jpeg(width: int, height: int) -> bytes:
    """Returns a JPEG of 8 x 8 pixels whose header says `width` x `height`."""
    data = bytearray(save(Image.new("RGB", (8, 8)), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def twice_sized_jpeg() -> bytes:
    data = save(make_image(), "JPEG")
    at = data.index(b"\xff\xc0")
    frame = data[at : at + 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]]
    return data[:at] + frame + data[at:]


def animated(form: str) -> bytes:
    """Returns an image of three frames; the first one is make_image()."""
    pictures = [make_image(seed) for seed in range(3)]
    return save(pictures[0], form, save_all=True, append_images=pictures[1:])


def wav(rate_hz: int, channels: int, data: bytes, *, tag: int = 1, bits: int = 16, said: int | None = None) -> bytes:
    align = channels * bits // 8
    layout = struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * align & 0xFFFFFFFF, align & 0xFFFF, bits)
    size = len(data) if said is None else said
    body = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", len(body) & 0xFFFFFFFF) + body


def flac(seconds: float, rate_hz: int = 48_000, channels: int = 1) -> bytes:
    """Returns a FLAC file of silence. 300 s of mono at 48 kHz take about 3 kB."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((int(seconds * rate_hz), channels), np.int16), rate_hz, format="FLAC")
    return buffer.getvalue()


def with_frames(data: bytes, frames: int) -> bytes:
    """Returns a FLAC file with its header changed to say `frames` samples."""
    (packed,) = struct.unpack_from(">Q", data, 18)
    return data[:18] + struct.pack(">Q", packed >> 36 << 36 | frames) + data[26:]


def floats(*values: float) -> bytes:
    return np.array(values * 2000, "<f4").tobytes()


def photo(**options: object) -> bytes:
    return save(make_image(), "JPEG", **options)


def on_its_side(image: Image.Image, description: str = "") -> bytes:
    """Returns a JPEG whose EXIF data say that it must be turned by 90 degrees."""
    tags = Image.Exif()
    tags[ExifTags.Base.Orientation] = 6
    tags[ExifTags.Base.ImageDescription] = description
    return save(image, "JPEG", exif=tags)


def icc() -> bytes:
    return photo(icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())


def text_bomb() -> bytes:
    info = PngInfo()
    info.add_text("Comment", "\0" * (32 << 20), zip=True)
    return save(make_image(), "PNG", pnginfo=info)


def deep(colour: int, bits: int = 16) -> Callable[[], bytes]:
    return lambda: flat_png(64, 64, bits=bits, colour=colour)


def patched(data: bytes, mark: bytes, at: int, value: bytes) -> bytes:
    """Returns a file with `value` written `at` bytes after the end of the first `mark`."""
    place = data.index(mark) + len(mark) + at
    return data[:place] + value + data[place + len(value) :]


def lasting(seconds: float, *, said: float) -> bytes:
    """Returns an MP4 of `seconds` whose headers (mvhd, mdhd) say a duration of `said` seconds."""
    data = encode_video(frames=int(seconds * 10), audio=None)
    for mark in (b"mvhd", b"mdhd"):
        scale = int.from_bytes(data[data.index(mark) + 16 : data.index(mark) + 20], "big")
        data = patched(data, mark, 16, struct.pack(">I", int(said * scale)))
    return data


def many_boxes() -> bytes:
    return struct.pack(">I4sI4s", 16, b"ftyp", 0, b"isom")[:16] + struct.pack(">I4s", 8, b"free") * 5000


def sized_mp4(width: int, height: int) -> bytes:
    """Returns an MP4 of 160 x 120 whose sample description says `width` x `height`."""
    return patched(encode_video(audio=None), b"stsd", 40, struct.pack(">HH", width, height))


def sized_gif(width: int, height: int) -> bytes:
    """Returns a GIF of 112 x 84 whose canvas is `width` x `height`."""
    data = save(make_image(), "GIF")
    return data[:6] + struct.pack("<HH", width, height) + data[10:]


def sized_webp(width: int, height: int) -> bytes:
    """Returns an extended WebP of 112 x 84 whose canvas is `width` x `height`."""
    data = bytearray(save(make_image(), "WEBP", icc_profile=b"none"))
    data[24:30] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def fragments(seconds: int) -> bytes:
    """Returns an MP4 of fragments, as a recorder writes it."""
    return encode_video(frames=2 * seconds, fps=2, width=32, height=32, audio=None, options=FRAGMENTS)


def opus(seconds: int) -> bytes:
    """Returns an Opus file of silence. 12 minutes take about 110 kB."""
    return encode_audio("ogg", "libopus", np.zeros(seconds * 48_000, np.float32), 48_000)


def timed(data: bytes, clock: Callable[[int], int]) -> bytes:
    """Returns an Ogg file whose pages end at other samples of its clock. Their checksums are right."""
    result = bytearray(data)
    for page in re.finditer(b"OggS", data):
        start = page.start()
        if at := int.from_bytes(data[start + 6 : start + 14], "little"):
            segments = data[start + 26]
            end = start + 27 + segments + sum(data[start + 27 : start + 27 + segments])
            result[start + 6 : start + 14] = struct.pack("<Q", clock(at))
            result[start + 22 : start + 26] = bytes(4)
            result[start + 22 : start + 26] = struct.pack("<I", _ogg_crc(result[start:end]))
    return bytes(result)


def _ogg_crc(page: bytes | bytearray) -> int:
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 if crc & 1 << 31 else crc << 1) & 0xFFFFFFFF
    return crc


def mostly_damaged() -> bytes:
    """Returns an MP3 that begins well and goes on with noise."""
    data = encode_audio("mp3", "libmp3lame", make_audio(seconds=0.3), 16_000)
    return data + np.random.default_rng(0).bytes(9 * len(data))
