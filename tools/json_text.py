"""JSON for people who read it and its differences: what fits in one line is in one line, as prettier writes arrays.

Of what does not fit, numbers, strings and booleans in a row share lines; an object or list begins its own.
"""

from __future__ import annotations

import json
from typing import Any

WIDTH = 120


def format_json(value: Any) -> str:
    """Returns the value as JSON with a line break at its end, indented by one space a level."""
    return _format(value, 0, 0) + "\n"


def _format(value: Any, depth: int, taken: int) -> str:
    """Returns the text of a value that stands behind `taken` characters of its line."""
    flat = json.dumps(value)
    if _is_plain(value) or taken + len(flat) + 1 <= WIDTH:
        return flat
    pad = " " * (depth + 1)
    parts = list(value.values()) if isinstance(value, dict) else value
    leads = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    lines, joins = list[str](), False
    for lead, part in zip(leads, parts, strict=True):
        text = lead + _format(part, depth + 1, len(pad + lead))
        if joins and _is_plain(part) and len(pad + lines[-1] + text) + 3 <= WIDTH:
            lines[-1] += f", {text}"
        else:
            lines.append(text)
        joins = _is_plain(part)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    inside = f",\n{pad}".join(lines)
    if all(map(_is_plain, parts)):
        return opening + inside + closing
    return f"{opening}\n{pad}{inside}\n{' ' * depth}{closing}"


def _is_plain(value: Any) -> bool:
    return not isinstance(value, dict | list) or not value
