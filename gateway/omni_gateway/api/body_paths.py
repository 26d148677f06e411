"""Paths of pydantic's problems in the body that the client sent. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_TAGS: Final[Mapping[str, str]] = {"messages": "role", "content": "type", "response_format": "type"}
"""Fields that may hold several kinds of objects, each with the name of the object's field that gives the kind. pydantic
puts this kind into the path of a problem."""


def body_keys(loc: Sequence[str | int], body: Any, *, missing: bool) -> list[str | int]:
    """Returns the keys that lead to a wrong value in the body, without pydantic's names of union members.

    loc: pydantic's path inside the body. missing: whether its last item is a field that the body lacks.
    """
    keys: list[str | int] = []
    here, tag = body, ""
    for place, item in enumerate(loc):
        if isinstance(item, int):
            if isinstance(here, list) and item < len(here):
                keys.append(item)
                here = here[item]
            continue
        if tag and place < len(loc) - 1 and isinstance(here, dict) and here.get(tag) == item:
            tag = ""  # a part of the type image_url also has a field image_url, which is the next item
        elif isinstance(here, dict) and item in here:
            keys.append(item)
            here, tag = here[item], _TAGS.get(item, "")
        elif missing and place == len(loc) - 1:
            keys.append(item)
    return keys


def join_keys(keys: Sequence[str | int]) -> str:
    """Returns the path that the keys form, such as messages[0].content."""
    path = ""
    for key in keys:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
    return path
