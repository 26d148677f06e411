"""Pages of lists and lines of watches, as the API server sends them. What is no such thing raises ValueError."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from omni_kube.errors import api_error
from omni_kube.objects import ObjectKind
from omni_kube.seen import Seen, read_version


class Page(NamedTuple):
    """A part of a list."""

    items: list[Seen]
    version: str
    """Resource version of the whole list."""
    rest: str
    """What to ask for the next part with; empty of the last."""


class WatchEvent(NamedTuple):
    """A line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: str
    """Resource version up to which the watch has told everything."""
    seen: Seen | None = None
    """The object; None of a bookmark."""


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct):
    resourceVersion: str = ""
    rest: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


_LINE = msgspec.json.Decoder(_Line)
_LIST = msgspec.json.Decoder(_List)


def parse_page(content: bytes, kind: ObjectKind) -> Page:
    """A page of a list of a kind. Raises msgspec.DecodeError, a ValueError."""
    page = _LIST.decode(content)
    items = [Seen.read(item, kind) for item in page.items or ()]
    return Page(items, page.metadata.resourceVersion, page.metadata.rest)


def parse_event(line: bytes, kind: ObjectKind, path: str) -> WatchEvent:
    """A line of the watch of a path. Raises ApiError for what it reports, and msgspec.DecodeError, a ValueError."""
    event = _LINE.decode(line)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object)
        raise api_error(int(status.get("code") or 500), status, call=f"watch {path}")
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, read_version(event.object))
    seen = Seen.read(event.object, kind)
    return WatchEvent(event.type, str(seen.version), seen)
