"""Names of voices, for stages and the gateway. Pure."""

from __future__ import annotations

from collections.abc import Iterable


def find_voice(wanted: str, names: Iterable[str]) -> str | None:
    """Returns the one of `names` that is meant by a name in any case; None if there is none.

    If several differ only in case, the one that is spelled exactly so is meant, otherwise the first.
    """
    others: list[str] = []
    for name in names:
        if name == wanted:
            return name
        if name.lower() == wanted.lower():
            others.append(name)
    return others[0] if others else None
