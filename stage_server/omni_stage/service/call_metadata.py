"""Metadata of a call: ids that the caller brings and that every hop forwards. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

REQUEST_ID_KEY: Final = "x-request-id"
TRACEPARENT_KEY: Final = "traceparent"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def _first(metadata: Iterable[tuple[str, str | bytes]] | None, wanted: str) -> str:
    return next((value for key, value in metadata or () if key == wanted and isinstance(value, str)), "")


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's x-request-id, or a fresh one if it brought none that is safe to log."""
    given = _first(metadata, REQUEST_ID_KEY)
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """The caller's traceparent; empty if it sent none that is well-formed."""
    trace = _first(metadata, TRACEPARENT_KEY)
    return trace if _TRACEPARENT.match(trace) else ""


def forwarded_metadata(request_id: str, traceparent: str) -> tuple[tuple[str, str], ...]:
    """What the next hop gets: the request id, and the traceparent if there is one."""
    pairs = [(REQUEST_ID_KEY, request_id)]
    if traceparent:
        pairs.append((TRACEPARENT_KEY, traceparent))
    return tuple(pairs)
