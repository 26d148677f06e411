"""Maps the voice names that clients use to the pipeline's voices. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omni_gateway.errors import InvalidRequestError
from omni_proto.voices import find_voice


def pick_voice(wanted: str, voices: Sequence[str], aliases: Mapping[str, str], *, param: str) -> str:
    """Returns the pipeline's name of a voice, given that name or an alias, in any case. An empty name, for the default,
    stays empty.

    A voice goes before an alias of the same name, and an exact name before one in another case.
    Raises InvalidRequestError, which lists the known names.
    """
    if not wanted or wanted in voices:
        return wanted
    meant = _voice_of(wanted if wanted in aliases else None, voices, aliases)
    meant = meant or find_voice(wanted, voices) or _voice_of(find_voice(wanted, sorted(aliases)), voices, aliases)
    if meant is not None:
        return meant
    known = [*voices, *(alias for alias in sorted(aliases) if _voice_of(alias, voices, aliases) is not None)]
    raise InvalidRequestError(
        f"The voice {wanted[:64]!r} is unknown; use {', '.join(known) or 'the default: leave it out'}.", param=param
    )


def list_aliases(aliases: Mapping[str, str], voices: Sequence[str]) -> dict[str, list[str]]:
    """Returns the aliases of each voice in `voices`, sorted."""
    found: dict[str, list[str]] = {}
    for alias in sorted(aliases):
        voice = _voice_of(alias, voices, aliases) if voices else None
        if voice is not None:
            found.setdefault(voice, []).append(alias)
    return found


def _voice_of(alias: str | None, voices: Sequence[str], aliases: Mapping[str, str]) -> str | None:
    """Returns the voice of an alias; None if the pipeline lacks it. If `voices` is empty, they are not known."""
    if alias is None:
        return None
    return find_voice(aliases[alias], voices) if voices else aliases[alias]
