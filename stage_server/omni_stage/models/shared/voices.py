"""Selects the voice of a request."""

from __future__ import annotations

from collections.abc import Sequence

from omni_proto.voices import find_voice
from omni_stage.errors import InvalidRequestError


def pick_voice(name: str, voices: Sequence[str]) -> str:
    """Returns the named voice, in any case, or the first voice if `name` is empty.

    Raises InvalidRequestError listing the voices.
    """
    if not name:
        return voices[0]
    voice = find_voice(name, voices)
    if voice is None:
        raise InvalidRequestError(
            f"start.audio.voice: must be one of this checkpoint's voices: {', '.join(voices)}",
            field="start.audio.voice",
        )
    return voice
