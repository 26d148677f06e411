"""Forms are read as clients write them, and hostile ones are refused at a bounded cost."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from omni_gateway.errors import InvalidRequestError
from omni_gateway.openai.form_body import HEAD_BYTES, PARTS, TEXT_BYTES, is_form, parse_form

FILES = frozenset({"file"})
KIND = "multipart/form-data; boundary=b"
FILE = b"\r\n--b--\0\r\n--bb\xff"
"""Holds what resembles boundaries."""


def parse(body: bytes, kind: str = KIND) -> dict[str, Any]:
    return parse_form(bytearray(body), kind, FILES)


def part(name: str, content: bytes = b"x", more: str = "") -> bytes:
    return b'--b\r\nContent-Disposition: form-data; name="%s"%s\r\n\r\n%s\r\n' % (name.encode(), more.encode(), content)


def test_a_client_s_form_is_read_as_it_was_written() -> None:
    request = httpx.Request(
        "POST",
        "http://gateway",
        data={"model": "größe", "list[]": ["a", "b"], "one[]": "a", "object[type]": "vad", "object[ms]": "3", "no": ""},
        files={"file": ('a"; name="model.wav', FILE, "audio/wav")},
    )
    assert parse_form(request.read(), request.headers["content-type"], FILES) == {
        "model": "größe",
        "list": ["a", "b"],
        "one": ["a"],
        "object": {"type": "vad", "ms": "3"},
        "file": FILE,
    }


@pytest.mark.parametrize(
    "kind", [KIND, 'multipart/form-data; charset=utf-8; boundary="b"', "Multipart/Form-Data;BOUNDARY=b"]
)
def test_boundaries_have_several_spellings(kind: str) -> None:
    assert is_form(kind)
    assert parse(b"\r\n" + part("model") + b"--b--\r\nwhat follows is no part", kind) == {"model": "x"}


def test_names_need_no_quotes_and_lists_no_brackets() -> None:
    body = b"--b \t\r\ncontent-disposition:form-data;name=a\r\n\r\n1\r\n--b\r\nx-other: y\r\n"
    body += b'CONTENT-DISPOSITION: form-data; filename="f"; name="a"\r\n\r\n2\r\n--b--'
    assert parse(body) == {"a": ["1", "2"]}


@pytest.mark.parametrize(
    ("before", "line", "fold"),
    [
        (b"", b"\n", b""),
        (b"This is a message in MIME format.\r\n", b"\r\n", b""),
        (b"\r\n", b"\r\n", b"\r\n\t"),
        (b"", b"\n", b"\n "),
    ],
    ids=["bare LF", "a preamble", "a folded header", "a folded header with LF"],
)
def test_forms_of_scripts_and_mail_libraries_are_read(before: bytes, line: bytes, fold: bytes) -> None:
    """Go's mime/multipart and Python's email read them, too (RFC 2046, section 5.1.1; RFC 5322, section 2.2.3)."""
    name = b'content-disposition: form-data; filename="a\xe2\x80\xa8\x0bb";%b name="file"' % fold
    lines = [
        b"--b",
        name,
        b"content-type: audio/wav",
        b"",
        b"x\r\n\ny",
        b"--b",
        b"content-disposition: form-data; name=model",
    ]
    assert parse(before + line.join([*lines, b"", b"m", b"--b--"])) == {"file": b"x\r\n\ny", "model": "m"}


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", KIND, "does not begin"),
        (b"x--b\r\n", KIND, "does not begin"),
        (b"preamble --b\r\n", KIND, "does not begin"),
        (part("a"), KIND, "does not end"),
        (part("a") + b"--bc\r\n", KIND, "at the end of a line"),
        (part("a"), "multipart/form-data", "no boundary"),
        (part("a"), f"multipart/form-data; boundary={'b' * 71}", "no boundary"),
        (b"--b\r\n\r\nx\r\n--b--", KIND, "no name"),
        (part("a.b") + b"--b--", KIND, "no name"),
        (part("a" * 65) + b"--b--", KIND, "no name"),
        (part("a", more='; name="b"') + b"--b--", KIND, "no name"),
        (part("a", more="\r\nContent-Transfer-Encoding: base64") + b"--b--", KIND, "transfer-encoding"),
        (part("a", more="; x=" + "y" * HEAD_BYTES) + b"--b--", KIND, "headers are too long"),
        (part("a") * (PARTS + 1) + b"--b--", KIND, f"more than {PARTS} parts"),
        (part("a", b"\xff") + b"--b--", KIND, "not UTF-8"),
        (part("a", b"x" * (TEXT_BYTES + 1)) + b"--b--", KIND, f"at most {TEXT_BYTES}"),
        (part("file") * 2 + b"--b--", KIND, "given twice"),
        (part("a[b]") * 2 + b"--b--", KIND, "exclude each other"),
        (part("a[b]") + part("a[]") + b"--b--", KIND, "exclude each other"),
        (part("a") + part("a[b]") + b"--b--", KIND, "exclude each other"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words):
        parse(body, kind)


@pytest.mark.parametrize("end", [";" * 60_000, '; a="' + ";" * 60_000, '; a="' + '\\";' * 20_000])
def test_a_long_content_type_is_refused_unparsed(end: str) -> None:
    """The parser of the standard library would need up to 8 s, in which the gateway answers nobody."""
    assert not is_form(KIND + end)
    with pytest.raises(InvalidRequestError, match="names no boundary"):
        parse(part("model") + b"--b--", KIND + end)


def test_as_many_parts_as_allowed_are_read() -> None:
    assert parse(part("a") * PARTS + b"--b--") == {"a": ["x"] * PARTS}
