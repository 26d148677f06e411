"""Request ids and trace contexts. Pure functions, except that new ids are random."""

from __future__ import annotations

import re
import secrets
from typing import Final

_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_TRACEPARENT: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


def request_id(given: str | None) -> str:
    """Returns the client's x-request-id if it is a valid id, else a new id."""
    if given is not None and _ID.match(given):
        return given
    return f"req_{secrets.token_hex(16)}"


def trace_context(given: str | None) -> str | None:
    """Returns the client's W3C traceparent if it is valid, else None."""
    return given if given is not None and _TRACEPARENT.match(given) else None
