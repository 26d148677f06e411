"""Reads what the header of an audio file states, without decoding it, and finds files that were joined end to end.

Many files do not state their length: recordings that were streamed, MP3, AAC in ADTS. Standard library only.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from omni_proto.media_headers.container import (
    LATE_S,
    MAX_SECTIONS,
    OTHER_BYTES,
    MediaHeaderError,
    name_other,
    too_many_sections,
)
from omni_proto.media_headers.mpeg_frames import begins_mpeg, skip_id3
from omni_proto.media_headers.video import read_audio_seconds, sniff_video

BYTES_PER_SAMPLE: Final = 4
MAX_JOINED: Final = 256
"""Maximum number of files that one file may join."""

_WAVE_FORMATS: Final = {1: "PCM", 3: "IEEE float", 6: "A-law", 7: "u-law"}
_LAWS: Final = (6, 7)
_PACKED_WAVE_FORMATS: Final = dict(
    zip(
        (2, 17, 49, 0x50, 0x55, 0x45, 0x64, 0x28F),
        ("ADPCM", "IMA ADPCM", "GSM", "MPEG", "MP3", "G.726", "G.726", "G.722"),
        strict=True,
    )
)
_WAVE_EXTENSIBLE: Final = 0xFFFE
_CONTAINERS: Final = {
    "video/mp4": "audio/mp4",
    "video/quicktime": "audio/mp4",
    "video/webm": "audio/webm",
    "video/x-matroska": "audio/x-matroska",
}
_JOINTS: Final = {
    "audio/wav": re.compile(rb"WAVE(?<=(?:RIFF|RF64|BW64)....WAVE)", re.DOTALL),
    "audio/flac": re.compile(rb"fLaC[\x00\x80]\x00\x00\x22"),
    "audio/ogg": re.compile(rb"OggS\x00[\x02\x06]"),
    "audio/mp4": re.compile(rb"\x00\x00[\x00\x01][\x08-\xfc]ftyp[ -~]{4}"),
    "audio/webm": re.compile(rb"\x1aE\xdf\xa3.{1,80}?(?:webm|matroska)", re.DOTALL),
    "audio/x-matroska": re.compile(rb"\x1aE\xdf\xa3.{1,80}?(?:webm|matroska)", re.DOTALL),
    "audio/aiff": re.compile(rb"FORM....AIF[FC]", re.DOTALL),
    "audio/amr": re.compile(rb"#!AMR(?:-WB)?\n"),
    "audio/basic": re.compile(rb"\.snd\x00\x00..(?:.{4})\x00\x00\x00[\x01-\x1b]", re.DOTALL),
    "audio/x-caf": re.compile(rb"caff\x00\x01..desc", re.DOTALL),
    "audio/x-nist": re.compile(rb"NIST_1A\n"),
    "audio/x-voc": re.compile(rb"Creative Voice File\x1a"),
    "audio/x-w64": re.compile(rb"riff\x2e\x91\xcf\x11"),
}
"""The beginning of each file of a format, of which several may be joined. Of an Ogg file: of each of its streams.

Each begins with bytes, which are found at 0.7 ms per MiB; an alternative in their place takes ten times as long."""
_BEFORE_JOINT: Final = {"audio/wav": 8}
"""Bytes of such a beginning that lie before what is searched for."""
_BY_BEGINNING: Final = (
    *("audio/aiff", "audio/amr", "audio/basic", "audio/x-caf", "audio/x-nist", "audio/x-voc", "audio/x-w64"),
)
"""Formats of which only the beginning is read, and the lengths of AIFF and AU."""
_AU_BYTES: Final = {1: 1, 2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 8, 27: 1}
"""Bytes per sample by AU's number of an encoding."""
_AIFF_CODINGS: Final = (b"none", b"sowt", b"twos", b"fl32", b"fl64", b"alaw", b"ulaw", b"in24", b"in32")
"""Codings of AIFF-C whose frames are samples, in lower case."""
_UNKNOWN_LENGTH: Final = 0xFFFFFFFF
_SEARCHED: Final = 64 << 10
"""Bytes at the beginning in which a FLAC may begin, after what a transmission put before it."""
_OGG_PAGE: Final = re.compile(rb"OggS\x00[\x00-\x07]")
_OPUS_HZ: Final = 48_000
_MAX_PAGES: Final = 1 << 15
_PACKET_CONTINUES: Final = 255
"""A length in an Ogg page that means that the packet continues."""
_UNKNOWN_GRANULE: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class AudioHeader:
    """What an audio file states of itself."""

    media_type: str
    """audio/wav, flac, ogg, mpeg, aac, mp4, webm, x-matroska, or one of _BY_BEGINNING."""
    rate_hz: int = 0
    """0 if only the decoder finds it."""
    channels: int = 0
    """0 if only the decoder finds it."""
    frames: int = 0
    """Samples of each channel; 0 if the file does not state its length."""

    @property
    def seconds(self) -> float:
        """The length that the file states; 0 if it states none."""
        return self.frames / self.rate_hz if self.rate_hz else 0.0

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all channels decoded to float32; 0 if the file does not state its length."""
        return self.frames * self.channels * BYTES_PER_SAMPLE


def sniff_audio(view: memoryview) -> str | None:
    """Returns the media type by the beginning of a whole file, or None if it is unknown. An MP4, WebM or Matroska file
    is taken for audio."""
    view = skip_id3(view)
    head = bytes(view[:64])
    if head[:4] in (b"RIFF", b"RF64", b"BW64") and head[8:12] == b"WAVE":
        return "audio/wav"
    if head[:4] == b"fLaC":
        return "audio/flac"
    if head[:4] == b"OggS":
        return "audio/ogg"
    for kind in _BY_BEGINNING:
        if _JOINTS[kind].match(head):
            return kind
    if found := _CONTAINERS.get(sniff_video(head) or ""):
        return found
    if _JOINTS["audio/flac"].search(view[:_SEARCHED]):
        return "audio/flac"
    return None if name_other(bytes(view[:OTHER_BYTES])) else begins_mpeg(view)


def read_audio_header(media_type: str, view: memoryview) -> AudioHeader:
    """Returns the header of an audio file of this type; the lengths of joined files are added.

    Raises MediaHeaderError; struct.error or IndexError if it is cut off.
    """
    if media_type not in _JOINTS:
        return AudioHeader(media_type)
    readers = {
        "audio/wav": _read_wav,
        "audio/flac": _read_flac,
        "audio/ogg": _read_ogg,
        "audio/aiff": _read_aiff,
        "audio/basic": _read_au,
    }
    reader = readers.get(media_type, partial(_read_container, media_type))
    headers = [reader(part) for part in split_joined(media_type, view)]
    first, seconds = headers[0], sum(header.seconds for header in headers)
    if len(headers) == 1:
        return first
    if any(not header.frames for header in headers):
        return AudioHeader(media_type, first.rate_hz, first.channels)
    channels = max(header.channels for header in headers)
    return AudioHeader(media_type, first.rate_hz, channels, int(seconds * first.rate_hz) + 1)


def split_joined(media_type: str, view: memoryview) -> list[memoryview]:
    """Returns the files of which a file consists: usually one, more if files were joined end to end.

    What precedes the first one, such as a tag, is left out. Raises MediaHeaderError if there are more than MAX_JOINED.
    """
    joint = _JOINTS.get(media_type)
    if joint is None or (media_type == "audio/wav" and _states_its_end(view)):
        return [view]
    before = _BEFORE_JOINT.get(media_type, 0)
    starts: list[int] = []
    last = -1
    for count, found in enumerate(joint.finditer(view)):
        # The streams of one Ogg file all begin before the first page that continues one.
        if media_type != "audio/ogg" or last < 0 or _continues(view, last, found.start()):
            starts.append(found.start() - before)
        last = found.start()
        if len(starts) > MAX_JOINED or count > MAX_SECTIONS:
            raise MediaHeaderError(f"more than {MAX_JOINED} audio files are joined; send fewer at a time")
    if not starts and media_type != "audio/mp4":
        raise MediaHeaderError("the audio has no beginning")
    if not starts:
        return [view]  # a QuickTime file of the time before `ftyp`
    return [view[start:end] for start, end in zip(starts, (*starts[1:], len(view)), strict=True)]


def _states_its_end(view: memoryview) -> bool:
    """Returns whether a WAV's own length is that of the file, so that nothing is joined to it."""
    return bytes(view[:4]) == b"RIFF" and struct.unpack_from("<I", view, 4)[0] + 8 == len(view)


def _continues(view: memoryview, begin: int, end: int) -> bool:
    """Returns whether pages that continue a stream lie between two pages that begin one."""
    page = _OGG_PAGE.search(view, begin + 4, end)
    return page is not None


def _read_container(media_type: str, view: memoryview) -> AudioHeader:
    try:
        seconds = read_audio_seconds(view)
    except (MediaHeaderError, struct.error, IndexError):
        # The decoder finds its way through many damaged containers, and reports the rest.
        seconds = 0.0
    # 16 kHz is only a unit here: these files have a clock of their own.
    return AudioHeader(media_type, 16_000, 1, int(seconds * 16_000)) if seconds else AudioHeader(media_type)


def _read_wav(view: memoryview) -> AudioHeader:
    layout: tuple[int, int, int] | None = None
    there: int | None = None
    stated = 0  # by RF64 and BW64, for lengths of more than 32 bits
    position = 12
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            raise MediaHeaderError("the WAV has no samples" if there is None else "the WAV does not state its format")
        kind, length = struct.unpack_from("<4sI", view, position)
        position += 8
        if kind == b"fmt ":
            if layout is not None:
                raise MediaHeaderError("the WAV states its format twice")
            layout = _read_wave_format(view[position : position + length])
        elif kind == b"ds64":
            (stated,) = struct.unpack_from("<Q", view, position + 8)
        elif kind == b"data":
            # Programs that stream do not know the length and write the largest number, or 0.
            there = len(view) - position
            length = stated if length == _UNKNOWN_LENGTH else length
            there = min(length, there) if length else there
            if not there:
                raise MediaHeaderError("the WAV has no samples")
        if layout is not None and there is not None:
            channels, rate, width = layout
            return AudioHeader("audio/wav", rate, channels, there // (channels * width) if width else 0)
        position += length + length % 2
    raise too_many_sections("WAV")


def _read_wave_format(chunk: memoryview) -> tuple[int, int, int]:
    """Returns the channels, the rate in Hz and the bytes per sample; 0 bytes for compressed samples."""
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", chunk)
    if tag == _WAVE_EXTENSIBLE:
        (tag,) = struct.unpack_from("<H", chunk, 24)
    if not channels or not rate:
        raise MediaHeaderError("the format of the WAV makes no sense")
    if tag in _PACKED_WAVE_FORMATS:
        return channels, rate, 0
    if tag not in _WAVE_FORMATS:
        accepted = ", ".join(dict.fromkeys((*_WAVE_FORMATS.values(), *_PACKED_WAVE_FORMATS.values())))
        raise MediaHeaderError(f"the WAV is compressed; {accepted} are accepted")
    # Writers of A-law and u-law state the bits before they packed them. Of other samples, the size of all channels
    # together is often wrong, but 20 or 24 bits may stand in 32.
    width = 1 if tag in _LAWS else 4 if 16 < bits <= 24 and align == 4 * channels else -(-bits // 8)
    if not 1 <= width <= 8:
        raise MediaHeaderError("the format of the WAV makes no sense")
    return channels, rate, width


def _read_aiff(view: memoryview) -> AudioHeader:
    position = 12
    for _ in range(MAX_SECTIONS):
        if position + 8 > len(view):
            return AudioHeader("audio/aiff")  # the decoder reports what is missing
        kind, length = struct.unpack_from(">4sI", view, position)
        position += 8
        if kind == b"COMM":
            channels, frames, _, exponent, mantissa = struct.unpack_from(">HIHHQ", view, position)
            packed = length > 18 and bytes(view[position + 18 : position + 22]).lower() not in _AIFF_CODINGS
            shift = 16383 + 63 - exponent
            if packed or not 0 <= shift < 64:
                return AudioHeader("audio/aiff")
            return AudioHeader("audio/aiff", mantissa >> shift, channels, frames)
        position += length + length % 2
    raise too_many_sections("AIFF")


def _read_au(view: memoryview) -> AudioHeader:
    _, length, coding, rate, channels = struct.unpack_from(">IIIII", view, 4)
    width = _AU_BYTES.get(coding, 0) * channels
    frames = length // width if width and length != _UNKNOWN_LENGTH else 0
    return AudioHeader("audio/basic", rate, channels, frames)


def _read_flac(view: memoryview, position: int = 0) -> AudioHeader:
    (head,) = struct.unpack_from(">I", view, position + 4)
    if head & 0x7FFFFFFF != 34:
        raise MediaHeaderError("the FLAC does not begin with its format")
    # 20 bits: rate; 3: channels - 1; 5: bits per sample - 1; 36: samples.
    (packed,) = struct.unpack_from(">Q", view, position + 18)
    rate, channels, frames = packed >> 44, (packed >> 41 & 7) + 1, packed & (1 << 36) - 1
    if not rate:
        raise MediaHeaderError("the FLAC has no rate")
    return AudioHeader("audio/flac", rate, channels, frames)


def _read_ogg(view: memoryview) -> AudioHeader:
    rate = channels = skipped = last = 0
    serial = None
    pages: list[tuple[int, int]] = []  # the first two that say their time: it, and how many packets end in the page
    for count, page in enumerate(_OGG_PAGE.finditer(view)):
        start = page.start()
        if start + 27 > len(view):
            break
        if count > _MAX_PAGES:
            raise MediaHeaderError(f"the Ogg has more than {_MAX_PAGES} pages; send it in parts")
        flags, granule, number = struct.unpack_from("<BQI", view, start + 5)
        if flags & 2 and serial is None:
            packet = start + 27 + view[start + 26]
            found = _read_ogg_codec(bytes(view[packet : packet + 64]))
            if found is not None:
                serial = number
                rate, channels, skipped = found
        elif number == serial and granule != _UNKNOWN_GRANULE:
            if granule and len(pages) < 2:
                lengths = view[start + 27 : start + 27 + view[start + 26]]
                pages.append((granule, sum(length < _PACKET_CONTINUES for length in lengths)))
            last = max(last, granule)
    if serial is None:
        raise MediaHeaderError("the Ogg holds neither Opus, Vorbis, FLAC nor Speex")
    if not rate or not channels:
        raise MediaHeaderError("the format of the Ogg makes no sense")
    if _ogg_begin(pages) >= LATE_S * rate:
        # A piece of a longer recording keeps its times. When it begins is known only roughly, as is then its length.
        return AudioHeader("audio/ogg", rate, channels)
    return AudioHeader("audio/ogg", rate, channels, max(0, last - skipped))


def _ogg_begin(pages: Sequence[tuple[int, int]]) -> int:
    """Returns about when a stream begins, in samples, if the packets of its first two pages are equally long."""
    if len(pages) < 2:
        return 0
    (first, packets), (second, more) = pages
    return max(0, first - packets * (second - first) // max(1, more))


def _read_ogg_codec(packet: bytes) -> tuple[int, int, int] | None:
    """Returns the rate in Hz, the channels and the samples to skip at the beginning, or None if it is no audio."""
    if packet[:8] == b"OpusHead":
        return _OPUS_HZ, packet[9], int.from_bytes(packet[10:12], "little")
    if packet[:7] == b"\x01vorbis":
        return int.from_bytes(packet[12:16], "little"), packet[11], 0
    if packet[:8] == b"Speex   ":
        return int.from_bytes(packet[36:40], "little"), int.from_bytes(packet[48:52], "little"), 0
    if packet[:5] == b"\x7fFLAC":
        header = _read_flac(memoryview(packet), 9)
        return header.rate_hz, header.channels, 0
    return None
