"""What the readers of headers share: their error, and the bound on the parts of a file that they visit."""

from __future__ import annotations

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
