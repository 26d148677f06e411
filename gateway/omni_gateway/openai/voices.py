"""Maps the voice names that clients use to the pipeline's voices. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from omni_gateway.errors import InvalidRequestError


def pick_voice(wanted: str, voices: Sequence[str], aliases: Mapping[str, str], *, param: str) -> str:
    """Returns the pipeline's name of a voice, given that name or an alias. An empty name, for the default, stays empty.

    Raises InvalidRequestError, which lists the known names.
    """
    if not wanted or wanted in voices:
        return wanted
    meant = aliases.get(wanted)
    if meant is not None and (not voices or meant in voices):
        return meant
    known = [*voices, *(alias for alias, voice in sorted(aliases.items()) if not voices or voice in voices)]
    raise InvalidRequestError(
        f"The voice {wanted[:64]!r} is unknown; use {', '.join(known) or 'the default: leave it out'}.", param=param
    )


def list_aliases(aliases: Mapping[str, str], voices: Sequence[str]) -> dict[str, list[str]]:
    """Returns the aliases of each voice in `voices`, sorted."""
    found: dict[str, list[str]] = {}
    for alias, voice in sorted(aliases.items()):
        if voice in voices:
            found.setdefault(voice, []).append(alias)
    return found
