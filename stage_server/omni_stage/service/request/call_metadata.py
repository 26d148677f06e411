"""Metadata of a call: the ids that the caller sends. Every stage forwards request id and traceparent. Pure."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Final

from omni_proto.rpc.metadata import USER_KEY

REQUEST_ID_KEY: Final = "x-request-id"
TRACEPARENT_KEY: Final = "traceparent"

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}\Z")
_USER = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")


def _first(metadata: Iterable[tuple[str, str | bytes]] | None, wanted: str) -> str:
    return next((value for key, value in metadata or () if key == wanted and isinstance(value, str)), "")


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the caller's x-request-id, or a new id if the caller sent none that is safe to log."""
    given = _first(metadata, REQUEST_ID_KEY)
    return given if _REQUEST_ID.match(given) else uuid.uuid4().hex


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the caller's traceparent, or "" if the caller sent no well-formed one."""
    trace = _first(metadata, TRACEPARENT_KEY)
    return trace if _TRACEPARENT.match(trace) else ""


def user_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns the user that the caller named, or "" if the caller named no well-formed one."""
    user = _first(metadata, USER_KEY)
    return user if _USER.match(user) else ""


def forwarded_metadata(request_id: str, traceparent: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata for the next stage: the request id, and the traceparent if there is one."""
    pairs = [(REQUEST_ID_KEY, request_id)]
    if traceparent:
        pairs.append((TRACEPARENT_KEY, traceparent))
    return tuple(pairs)
