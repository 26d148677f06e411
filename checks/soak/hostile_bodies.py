"""JSON bodies that attack the gateway."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

MEBI: Final = 1 << 20
CHAT: Final = b'{"model":"m","messages":[{"role":"user","content":"hi"}],'


def request(
    body: bytes, lines: bytes = b"", *, length: int | None = None, path: bytes = b"/v1/chat/completions"
) -> bytes:
    """Returns a POST with a body, which may be shorter than it says."""
    size = len(body) if length is None else length
    kind = b"host: x\r\ncontent-type: application/json\r\n"
    return b"POST %b HTTP/1.1\r\n%b%bcontent-length: %d\r\n\r\n%b" % (path, kind, lines, size, body)


def objects(count: int) -> bytes:
    return b",".join(b'"k%d":1' % number for number in range(count))


BODIES: Final[Mapping[str, Callable[[], bytes]]] = {
    "unknown keys": lambda: CHAT + objects(300_000) + b"}",
    "keys of a message": lambda: b'{"messages":[{' + objects(300_000) + b"}]}",
    "equal keys": lambda: CHAT + b",".join([b'"k":1'] * 600_000) + b"}",
    "wrong messages": lambda: b'{"model":"m","messages":[' + b",".join([b'{"role":"user","x":1}'] * 200_000) + b"]}",
    "wrong messages within the limit": lambda: b'{"messages":[' + b",".join([b'{"role":"user","x":1}'] * 2048) + b"]}",
    "wrong parts": lambda: b'{"messages":[{"role":"user","content":[' + b",".join([b"{}"] * 300_000) + b"]}]}",
    "tools": lambda: CHAT + b'"tools":[' + b",".join([b"{}"] * 300_000) + b"]}",
    "logit_bias": lambda: CHAT + b'"logit_bias":{' + objects(300_000) + b"}}",
    "empty lists": lambda: CHAT + b'"functions":[' + b"[]," * (15 * MEBI) + b"[]]}",
    "empty texts": lambda: CHAT + b'"stop":[' + b'"",' * (15 * MEBI) + b'""]}',
    "depth": lambda: CHAT + b'"prediction":' + b'{"a":' * 500_000 + b"1" + b"}" * 500_000 + b"}",
    "a deep schema": lambda: (
        CHAT
        + b'"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":'
        + b'{"properties":{"a":' * 900
        + b"{}"
        + b"}}" * 900
        + b"}}}"
    ),
    "digits": lambda: CHAT + b'"seed":' + b"1" * (45 * MEBI) + b"}",
    "numbers": lambda: CHAT + b'"functions":[' + b",".join([b"1" * 4300] * 10_000) + b"]}",
    "fractions": lambda: CHAT + b'"functions":[' + b",".join([b"0." + b"1" * 4300] * 10_000) + b"]}",
    "text": lambda: CHAT + b'"user":"' + b"a, " * (15 * MEBI) + b'"}',
    "text of another script": lambda: CHAT + b'"user":"' + "ก".encode() * (15 * MEBI) + b'"}',
    "escapes": lambda: CHAT + b'"user":"' + b"\\n" * (22 * MEBI) + b'"}',
    "escaped quotes": lambda: CHAT + b'"user":"' + b'\\"' * (22 * MEBI) + b'"}',
    "backslashes": lambda: CHAT + b'"user":"' + b"\\\\" * (22 * MEBI) + b'"}',
    "escapes of four digits": lambda: CHAT + b'"user":"' + b"\\u0e01" * (7 * MEBI) + b'"}',
    "base64": lambda: CHAT + b'"user":"' + b"QUJD" * (11 * MEBI) + b'"}',
    "an image": lambda: (
        b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"'
        b"data:image/png;base64," + b"QUJD" * (7 * MEBI) + b'"}}]}]}'
    ),
    "a long key": lambda: CHAT + b'"' + b"k" * (45 * MEBI) + b'":1}',
    "a long name": lambda: b'{"model":"' + b"m" * (45 * MEBI) + b'","messages":[{"role":"user","content":"hi"}]}',
    "a long role": lambda: b'{"model":"m","messages":[{"role":"' + b"m" * (45 * MEBI) + b'"}]}',
    "blanks": lambda: b" " * (45 * MEBI) + CHAT[:-1] + b"}",
    "no JSON": lambda: b"x" * (45 * MEBI),
    "a schema of many names": lambda: (
        CHAT
        + b'"tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{'
        + objects(60_000)
        + b"}}}}]}"
    ),
}
"""Bodies whose parts cost far more than their bytes, and large ones that cost no more than they have to."""
