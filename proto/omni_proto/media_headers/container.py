"""What the readers of headers share: their error, the bound on the parts of a file that they visit, and the tracks of a
container file such as MP4 or Matroska.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omni_proto.errors import OmniProtoError

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
