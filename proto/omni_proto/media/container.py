"""The tracks of a container file, such as MP4 or Matroska, as its header describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from omni_proto.media.header_error import MediaHeaderError

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
