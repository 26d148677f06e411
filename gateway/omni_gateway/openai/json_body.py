"""Parses JSON bodies at a cost that their limits bound, whatever is wrong with them. Pure functions.

Everything is counted before it is parsed, and checked before pydantic validates it. json.loads holds Python's global
lock, so that not even the event loop of another thread runs meanwhile. Therefore the long pieces of base64 in a body,
its media, are cut out first, and only its texts are parsed at once.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from omni_gateway.errors import InvalidRequestError

VALUES: Final = 65_536
"""Maximum number of values in a body: texts, numbers, lists and objects, and what they contain."""
KEYS: Final = 512
"""Maximum number of keys of one object."""
ITEMS: Final = 8192
"""Maximum number of items of one list."""
DEPTH: Final = 64
"""Maximum depth of lists and objects inside each other."""
DIGITS: Final = 64
"""Maximum number of characters of a number. Python needs quadratic time to convert digits."""
KEY_CHARS: Final = 1024
"""Maximum number of characters of a key."""
VALUE_BYTES: Final = 1024
"""Memory that a value may use besides its text: as a Python object, as a field of a model, and in pydantic's error
messages. Measured with lists of empty lists and objects, and with unknown fields."""
_BLOCK: Final = 32 << 10
"""Size of the pieces of base64 that are cut out. They begin at multiples of it."""
_BASE64: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_"
_ESCAPES: Final = (("\\/", "/"), ("\\n", "\n"), ("\\r", "\r"))
"""Escapes inside base64: PHP escapes each slash, and others wrap lines."""
_ESCAPE_SHARE: Final = 16
"""A piece of base64 has at most one escape in so many bytes."""
_ESCAPE_CHARS: Final = 5
"""An escape is at most a backslash, u, and four digits; so a block may begin within one."""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_PATH_CHARS: Final = 256

Hold = Callable[[int], None]
"""Counts bytes before they are kept. May raise a GatewayError."""
Location = tuple[Any, ...]
"""Where a value is: () for the whole body, else (the location of its container, its key or index)."""
_TAGS: Final[Mapping[str, str]] = {"messages": "role", "content": "type", "response_format": "type"}
"""Fields that may hold several kinds of objects, each with the name of the object's field that gives the kind. pydantic
puts this kind into the path of a problem."""


def parse_json(body: bytes | bytearray, text_bytes: int, hold: Hold) -> Any:
    """Returns the value of a JSON text. text_bytes: the maximum that a body may have besides long base64.

    Raises InvalidRequestError, which names the field, the limit and the remedy; and the errors of `hold`.
    """
    mark = secrets.token_hex(16)  # no body contains it, because no client knows it
    text, cut = _cut_base64(body, mark.encode())
    if len(text) > text_bytes:
        raise InvalidRequestError(
            f"The body has {len(text)} bytes besides base64, at most {text_bytes} are read; shorten its texts.",
            code="string_above_max_length",
        )
    values = count_values(text, VALUES)
    if values > VALUES:
        raise InvalidRequestError(
            f"The body has more than {VALUES} JSON values, the limit; send fewer messages, parts or fields."
        )
    hold(VALUE_BYTES * values)
    try:
        found = json.loads(text, parse_int=_read_int, parse_float=_read_float)
    except RecursionError as error:
        raise InvalidRequestError(f"The body nests more than {DEPTH} lists and objects; nest fewer.") from error
    except UnicodeDecodeError as error:
        raise InvalidRequestError("The body is not JSON: it is not UTF-8 text.", code="invalid_json") from error
    except json.JSONDecodeError as error:
        # Behind base64 that was cut out, the place is another one.
        place = f", at line {error.lineno}, column {error.colno}" if not cut else ""
        said = f"The body is not JSON: {error.msg.removesuffix(' at')}{place}."
        raise InvalidRequestError(said, code="invalid_json") from error
    return _Check(mark, body, cut).run(found)


def count_values(text: bytes | bytearray, maximum: int) -> int:
    """Returns an upper bound of the number of values inside a JSON object or list, without parsing it: if it is at most
    `maximum`, commas in texts may count as well; otherwise the number is exact, or `maximum` + 1.

    Counts commas and opening brackets: each value follows one of its own.
    """
    count = _count_marks(text)
    if count <= maximum:
        return count
    # Without escaped quotes, each second piece between quotes is outside of texts. A key has a value, so there are at
    # most twice as many texts as values.
    text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if text.count(b'"') > 4 * maximum:
        return maximum + 1
    return min(maximum + 1, _count_marks(b"".join(text.split(b'"')[::2])))


def _count_marks(text: bytes | bytearray) -> int:
    return sum(text.count(mark) for mark in (b",", b"[", b"{"))


def _cut_base64(body: bytes | bytearray, mark: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """Returns the body with each long piece of base64 replaced by `mark`, its number and a dot, and the pieces' places.

    A piece that is outside of a text, such as 32 KiB of digits, leaves a text that is not JSON.
    """
    cut: list[tuple[int, int]] = []
    for start in range(0, len(body) - _BLOCK + 1, _BLOCK):
        begins_in_escape = b"\\" in body[max(0, start - _ESCAPE_CHARS) : start]
        if begins_in_escape or not _is_base64(body[start : start + _BLOCK]):
            continue
        if cut and cut[-1][1] == start:
            cut[-1] = (cut[-1][0], start + _BLOCK)
        else:
            cut.append((start, start + _BLOCK))
    kept, last = [], 0
    for number, (start, end) in enumerate(cut):
        kept += [body[last:start], b"%b%d." % (mark, number)]
        last = end
    return b"".join([*kept, body[last:]]), cut


def _is_base64(block: bytes | bytearray) -> bool:
    rest = block.translate(None, _BASE64)
    if rest and len(rest) * _ESCAPE_SHARE <= len(block) and not rest.strip(b"\\"):
        for escape, _ in _ESCAPES:
            block = block.replace(escape.encode(), b"")
        rest = block.translate(None, _BASE64)
    return not rest


def _read_int(digits: str) -> int:
    return int(_short(digits))


def _read_float(digits: str) -> float:
    return float(_short(digits))


def _short(digits: str) -> str:
    if len(digits) > DIGITS:
        raise InvalidRequestError(
            f"The number {digits[:16]}... has {len(digits)} characters, at most {DIGITS} are read; round it."
        )
    return digits


class _Check:
    """Checks a parsed body, and puts its base64 back."""

    def __init__(self, mark: str, body: bytes | bytearray, cut: list[tuple[int, int]]) -> None:
        self._mark = re.compile(rf"{mark}(\d+)\.") if cut else None
        self._body = body
        self._cut = cut

    def run(self, found: Any) -> Any:
        """Returns the value with its base64. Raises InvalidRequestError."""
        whole = [found]
        rest: list[tuple[Location, int, Any]] = [((), 0, whole)]
        while rest:
            location, depth, container = rest.pop()
            if depth > DEPTH:
                _refuse(location, f"nests more than {DEPTH} lists and objects; nest fewer")
            if isinstance(container, dict):
                self._check_keys(location, container)
                items: Any = container.items()
            else:
                if len(container) > ITEMS:
                    _refuse(location, f"has {len(container)} items, at most {ITEMS} are read; send fewer")
                items = enumerate(container)
            for key, item in items:
                here = location if container is whole else (location, key)
                if isinstance(item, str):
                    if self._mark is not None and self._mark.search(item):
                        container[key] = self._restore(item)
                    elif not item.isascii() and _SURROGATE.search(item):
                        _refuse_half(here)
                elif isinstance(item, list | dict):
                    rest.append((here, depth + 1, item))
                elif isinstance(item, float) and not math.isfinite(item):
                    # Python reads NaN, Infinity and 1e999. JSON has none of them, and no stage would read them.
                    _refuse(here, "is NaN or infinite, or too large for a number; send a finite number")
        return whole[0]

    def _check_keys(self, location: Location, found: dict[str, Any]) -> None:
        if len(found) > KEYS:
            _refuse(location, f"has {len(found)} fields, at most {KEYS} are read; send fewer")
        for key in found:
            if len(key) > KEY_CHARS or (self._mark is not None and self._mark.search(key)):
                _refuse(location, f"has a field whose name is longer than {KEY_CHARS} characters; shorten it")
            if not key.isascii() and _SURROGATE.search(key):
                _refuse_half(location)

    def _restore(self, text: str) -> str:
        pieces = self._mark.split(text) if self._mark else [text]
        for index in range(1, len(pieces), 2):
            start, end = self._cut[int(pieces[index])]
            pieces[index] = "".join(self._read(at) for at in range(start, end, _BLOCK))
        return "".join(pieces)

    def _read(self, at: int) -> str:
        block = self._body[at : at + _BLOCK].decode("ascii")
        if "\\" in block:
            for escape, meant in _ESCAPES:
                block = block.replace(escape, meant)
        return block


def _refuse(location: Location, why: str) -> None:
    path = _path(location)
    raise InvalidRequestError(f"{path or 'The body'} {why}.", param=path or None)


def _refuse_half(location: Location) -> None:
    path = _path(location)
    raise InvalidRequestError(
        f"{path or 'body'}: the text contains half of a surrogate pair, which is not a character; cut texts "
        "between characters.",
        param=path or None,
    )


def _path(location: Location) -> str:
    """Returns a path such as messages[0].content, of at most 256 characters."""
    steps = []
    while location:
        location, step = location
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:_PATH_CHARS]}")
    return "".join(reversed(steps)).removeprefix(".")[:_PATH_CHARS]


def body_keys(loc: Sequence[str | int], body: Any, *, missing: bool) -> list[str | int]:
    """Returns the keys that lead to a wrong value in the body, without pydantic's names of union members.

    loc: pydantic's path inside the body. missing: whether its last item is a field that the body lacks.
    """
    keys: list[str | int] = []
    here, tag = body, ""
    for index, item in enumerate(loc):
        if isinstance(item, int):
            if isinstance(here, list) and item < len(here):
                keys.append(item)
                here = here[item]
            continue
        if tag and index < len(loc) - 1 and isinstance(here, dict) and here.get(tag) == item:
            tag = ""  # a part of the type image_url also has a field image_url, which is the next item
        elif isinstance(here, dict) and item in here:
            keys.append(item)
            here, tag = here[item], _TAGS.get(item, "")
        elif missing and index == len(loc) - 1:
            keys.append(item)
    return keys


def join_keys(keys: Sequence[str | int]) -> str:
    """Returns the path that the keys form, such as messages[0].content."""
    path = ""
    for key in keys:
        path += f"[{key}]" if isinstance(key, int) else f".{key}" if path else key
    return path
