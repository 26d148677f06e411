"""Short texts of values for people: a REPL, a log or print() never shows audio, tensors or long texts in full. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any, Final

_TEXT: Final = 200
"""Most characters of a text that are shown."""
_ITEMS: Final = 8
"""Most items of a list or mapping that are shown."""


class Brief:
    """A dataclass whose repr is short, whatever its fields hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Returns the name and the fields, each shortened by `brief`."""
        shown = ", ".join(f"{one.name}={brief(getattr(self, one.name))}" for one in fields(self) if one.repr)  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({shown})"


def brief(value: Any, *, depth: int = 1) -> str:
    """Returns a short text of a value: bytes and tensors by their size, long texts and lists by their beginning.

    depth: how many lists and mappings inside one another are shown with their items.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{memoryview(value).nbytes} bytes>"
    if isinstance(value, str):
        return repr(value) if len(value) <= _TEXT else f"<{len(value)} characters: {value[:_TEXT]!r}...>"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"<{type(value).__name__} {list(value.shape)} {value.dtype}>"
    if isinstance(value, Mapping):
        if not depth:
            return f"{{{len(value)} items}}"
        pairs = zip(range(_ITEMS), value.items(), strict=False)
        items = [f"{brief(key)}: {brief(item, depth=depth - 1)}" for _, (key, item) in pairs]
        return f"{{{', '.join(items)}{_more(len(value))}}}"
    if isinstance(value, Sequence | Set) and not is_dataclass(value):
        if not depth:
            return f"[{len(value)} items]"
        items = [brief(item, depth=depth - 1) for _, item in zip(range(_ITEMS), value, strict=False)]
        begin, end = ("[", "]") if isinstance(value, list) else ("(", ",)" if len(value) == 1 else ")")
        return f"{begin}{', '.join(items)}{_more(len(value))}{end}"
    text = repr(value)
    return text if is_dataclass(value) or len(text) <= 2 * _TEXT else f"{text[: 2 * _TEXT]}..."


def _more(count: int) -> str:
    return f", ... {count} in all" if count > _ITEMS else ""
