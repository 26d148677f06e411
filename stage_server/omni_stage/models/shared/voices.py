"""Selects the voice of a request."""

from __future__ import annotations

from collections.abc import Sequence

from omni_stage.errors import InvalidRequestError


def pick_voice(name: str, voices: Sequence[str]) -> str:
    """Returns the named voice, or the first voice if `name` is empty. Raises InvalidRequestError listing the voices."""
    if not name:
        return voices[0]
    if name not in voices:
        raise InvalidRequestError(
            f"start.audio.voice: must be one of this checkpoint's voices: {', '.join(voices)}",
            field="start.audio.voice",
        )
    return name
