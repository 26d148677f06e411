"""Parses a body of multipart/form-data (RFC 7578) at a bounded cost. Pure; the guard has bounded the body itself.

A field is named as OpenAI's clients and HTML forms name it: `name`, `name[]` for an item of a list, and `name[key]` for
a field of an object. A field without a value is left out.
"""

from __future__ import annotations

import email.message
import re
from typing import Any, Final

from omni_gateway.errors import InvalidRequestError

PARTS: Final = 64
"""Maximum number of parts."""
HEAD_BYTES: Final = 4 << 10
"""Maximum size of the headers of one part."""
TEXT_BYTES: Final = 64 << 10
"""Maximum size of a part that is not a file."""
FORM_TYPE: Final = "multipart/form-data"
TYPE_CHARS: Final = 1024
"""Maximum length of a content-type. The standard library's parser takes quadratic time: 8 s for one of 60 KB."""
_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")
_PARAMETER: Final = re.compile(r';\s*([a-z*]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^;"\s]*))', re.IGNORECASE)
_FOLDED: Final = re.compile(r"\r?\n[ \t]+")
"""A line break inside a header, which mail libraries write before a long file name."""
_NAME: Final = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]{0,63})(?:\[(?P<key>[A-Za-z0-9_]{0,64})\])?")
_ENCODINGS: Final = ("", "7bit", "8bit", "binary")


def is_form(content_type: str | None) -> bool:
    """Returns whether a body of this type is a form with parts."""
    return len(content_type or "") <= TYPE_CHARS and _message(content_type).get_content_type() == FORM_TYPE


def parse_form(body: bytes | bytearray, content_type: str | None, files: frozenset[str]) -> dict[str, Any]:
    """Returns the values of the fields: bytes of those in `files`, texts, lists of texts, and objects of texts.

    Raises InvalidRequestError.
    """
    boundary = _message(content_type).get_param("boundary") if is_form(content_type) else None
    if not isinstance(boundary, str) or not _BOUNDARY.fullmatch(boundary):
        raise _malformed("its content-type names no boundary")
    mark = b"--" + boundary.encode()
    at = body.find(mark, 0, HEAD_BYTES)
    if at < 0 or (at and body[at - 1 : at] != b"\n"):
        raise _malformed("it does not begin with its boundary")
    at += len(mark)
    line = b"\r\n" if body.find(b"\r", at, body.find(b"\n", at)) >= 0 else b"\n"  # scripts and small devices
    values: dict[str, Any] = {}
    for _ in range(PARTS + 1):
        if body[at : at + 2] == b"--":
            return values
        begin = body.find(line, at, at + HEAD_BYTES) + len(line)
        if begin < len(line) or body[at : begin - len(line)].strip(b" \t"):
            raise _malformed("a boundary is not at the end of a line")
        # The headers end at an empty line. A part without headers begins with it.
        blank = body.find(line + line, begin - len(line), begin + HEAD_BYTES)
        end = body.find(line + mark, blank + len(line)) if blank >= 0 else -1
        if end < 0:
            raise _malformed("a part does not end, or its headers are too long")
        # No view of the body may outlive this line, in the frames of an error either: the caller then clears the body.
        _add(values, bytes(body[begin:blank]), bytes(memoryview(body)[blank + 2 * len(line) : end]), files)
        at = end + len(line) + len(mark)
    raise InvalidRequestError(f"The form has more than {PARTS} parts, the limit.")


def _add(values: dict[str, Any], head: bytes, content: bytes, files: frozenset[str]) -> None:
    found = _NAME.fullmatch(_name_of(head))
    if found is None:
        raise _malformed("a part has no name, or a name that no field has")
    name, key = found["name"], found["key"]
    if name in files and key is None:
        if name in values:
            raise InvalidRequestError(f"{name} is given twice; send one file.", param=name)
        values[name] = content
        return
    if len(content) > TEXT_BYTES:
        raise InvalidRequestError(
            f"{name} holds {len(content)} bytes, at most {TEXT_BYTES} are allowed.",
            param=name,
            code="string_above_max_length",
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"{name} is not UTF-8 text.", param=name) from error
    if text:
        _put(values, name, key, text)


def _put(values: dict[str, Any], name: str, key: str | None, text: str) -> None:
    """Add a text to the field: as the value, as a further item of a list, or under a key of an object."""
    known = values.get(name)
    if key:
        known = values.setdefault(name, {})
        if not isinstance(known, dict) or key in known:
            raise InvalidRequestError(f"{name} has several values that exclude each other.", param=name)
        known[key] = text
    elif isinstance(known, dict):
        raise InvalidRequestError(f"{name} has several values that exclude each other.", param=name)
    elif known is None:
        values[name] = text if key is None else [text]
    else:
        values[name] = [*(known if isinstance(known, list) else [known]), text]


def _name_of(head: bytes) -> str:
    """Returns the name in a part's content-disposition; empty if it has none."""
    name = ""
    for line in _FOLDED.sub(" ", head.decode("utf-8", "replace")).split("\n"):
        field, _, value = line.partition(":")
        kind = field.strip().lower()
        if kind == "content-transfer-encoding" and value.strip().lower() not in _ENCODINGS:
            raise _malformed("a part has a content-transfer-encoding; send the bytes as they are")
        if kind == "content-disposition" and value.strip().lower().startswith("form-data"):
            given = [found for found in _PARAMETER.finditer(value) if found[1].lower() == "name"]
            name = (given[0][2] or given[0][3] or "") if len(given) == 1 else ""
    return name


def _message(content_type: str | None) -> email.message.Message:
    message = email.message.Message()
    message["content-type"] = content_type or ""
    return message


def _malformed(why: str) -> InvalidRequestError:
    return InvalidRequestError(f"The body is not {FORM_TYPE}: {why}.", code="invalid_form")
