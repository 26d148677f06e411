"""JSON for people who read it and its differences: what fits in one line is in one line, as prettier writes arrays."""

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
    if not isinstance(value, dict | list) or not value or taken + len(flat) + 1 <= WIDTH:
        return flat
    pad = " " * (depth + 1)
    leads = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    parts = value.values() if isinstance(value, dict) else value
    items = (f"{pad}{lead}{_format(part, depth + 1, len(pad + lead))}" for lead, part in zip(leads, parts, strict=True))
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n" + ",\n".join(items) + f"\n{' ' * depth}{closing}"
