"""What the readers of headers share: their error, the bound on the parts of a file that they visit, the tracks of a
container file such as MP4 or Matroska, and the names of formats that are not taken. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from omni_proto.errors import OmniProtoError

OTHER_BYTES: Final = 256
_BEGINNINGS: Final = tuple(
    (name, re.compile(beginning, re.DOTALL))
    for name, beginning in (
        ("HEIC", rb"....ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)"),
        ("AVIF", rb"....ftypavi[fs]"),
        ("TIFF", rb"II[*+]\0|MM\0[*+]"),
        ("BMP", rb"BM.{4}\0{4}"),
        ("JPEG XL", rb"\xff\x0a|\0\0\0\x0cJXL "),
        ("JPEG 2000", rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51"),
        ("an image of Netpbm (PPM, PGM)", rb"P[1-7]\s"),
        ("PCX", rb"\x0a[\x00-\x05]\x01[\x01-\x08]"),
        ("DDS", rb"DDS "),
        ("an icon (ICNS)", rb"icns"),
        ("an icon (ICO)", rb"\0\0[\x01\x02]\0[\x01-\x40]\0"),
        ("a Photoshop file", rb"8BPS"),
        ("SVG", rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml.*?)?<svg"),
        ("PDF", rb"%PDF"),
        ("Windows Media (WMA, WMV)", rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),
        ("AVI", rb"RIFF....AVI "),
        ("WAV in big-endian order (RIFX)", rb"RIFX....WAVE"),  # FFmpeg takes its samples for little-endian
        ("AAC in LATM", rb"\x56[\xe0-\xff].\x20"),
        ("Flash video", rb"FLV\x01"),
        ("an MPEG stream (TS, PS)", rb"G.{187}G|.{4}G.{191}G|\0\0\x01[\xba\xb3]"),
        ("RealMedia", rb"\.RMF|\.ra\xfd"),
        ("WavPack", rb"wvpk"),
        ("Monkey's Audio", rb"MAC "),
        ("True Audio", rb"TTA[12]"),
        ("Musepack", rb"MPCK|MP\+"),
        ("DSD", rb"DSD |FRM8"),
        ("AC-3", rb"\x0b\x77"),
        ("DTS", rb"\x7f\xfe\x80\x01|\xfe\x7f\x01\x80"),
        ("MIDI", rb"MThd"),
        ("a ZIP archive", rb"PK\x03\x04"),
        ("compressed with gzip", rb"\x1f\x8b"),
        ("a web page", rb"(?:\xef\xbb\xbf)?\s*<(?i:!doctype|html|head|body)"),
        ("JSON", rb"\s*[\[{]\s*[\"{\[]"),
        ("base64 once more", rb"(?:data:[a-z]|[A-Za-z0-9+/]{64})"),
    )
)


def name_other(head: bytes) -> str:
    """Returns the name of a format that is not taken, by a file's first OTHER_BYTES bytes; empty if it is unknown."""
    return next((name for name, beginning in _BEGINNINGS if beginning.match(head)), "")


MAX_SECTIONS: Final = 4096
"""Maximum number of chunks, segments, boxes or elements that are visited. Photographs with depth maps have about a
hundred."""


class MediaHeaderError(OmniProtoError, ValueError):
    """The bytes are not an image, audio or video of a supported format, or their header makes no sense. The message
    quotes no content."""


def too_many_sections(what: str) -> MediaHeaderError:
    """Returns the error for a file of more than MAX_SECTIONS sections."""
    return MediaHeaderError(f"the {what} has more than {MAX_SECTIONS} sections; save it without its metadata")


MAX_TRACKS: Final = 16
LATE_S: Final = 1
"""A recording whose first sample has a later time than this is a piece of a longer one, such as a broadcast."""


@dataclass(slots=True)
class Track:
    """One track."""

    kind: str = ""
    """"picture", "audio" or "other"; empty until it is known."""
    width: int = 0
    height: int = 0
    seconds: float = 0.0
    frames: int = 0
    quarter_turns: int = 0
    number: int = 0
    """Number of the track in the file."""
    scale: int = 0
    """Ticks per second of the track's clock."""


@dataclass(slots=True)
class Container:
    """A file and its tracks."""

    seconds: float = 0.0
    tracks: list[Track] = field(default_factory=list)

    def begin_track(self) -> Track:
        """Returns a new track. Raises MediaHeaderError if there are too many."""
        if len(self.tracks) == MAX_TRACKS:
            raise MediaHeaderError(f"the video has more than {MAX_TRACKS} tracks; save it with picture and audio alone")
        self.tracks.append(Track())
        return self.tracks[-1]

    @property
    def track(self) -> Track:
        """The track that is being described. Raises MediaHeaderError if there is none."""
        if not self.tracks:
            raise MediaHeaderError("the video describes a track before any track begins")
        return self.tracks[-1]
