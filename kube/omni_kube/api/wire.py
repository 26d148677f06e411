"""Parses pages of lists and lines of watches from the API server. Malformed input raises ValueError."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from omni_kube.api.seen import Seen, read_version
from omni_kube.errors import ApiError, api_error
from omni_kube.objects import ObjectKind


class Page(NamedTuple):
    """A page of a list."""

    items: list[Seen]
    version: str
    """Resource version of the whole list."""
    rest: str
    """The `continue` token that requests the next page; empty for the last page."""


class WatchEvent(NamedTuple):
    """A line of a watch."""

    type: str
    """ADDED, MODIFIED, DELETED or BOOKMARK."""
    version: str
    """Resource version up to which the watch has reported all changes."""
    seen: Seen | None = None
    """The object; None for a bookmark."""


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
    """Returns a page of a list of a kind. Raises msgspec.DecodeError, which is a ValueError."""
    page = _LIST.decode(content)
    items = [Seen.read(item, kind) for item in page.items or ()]
    return Page(items, page.metadata.resourceVersion, page.metadata.rest)


def parse_events(
    lines: Iterable[bytes], kind: ObjectKind, path: str
) -> tuple[list[WatchEvent], ApiError | ValueError | None]:
    """Returns the events in the lines of a watch. Stops at the first line that parse_event refuses; also returns its
    error."""
    events: list[WatchEvent] = []
    try:
        for line in lines:
            events.append(parse_event(line, kind, path))
    except (ApiError, ValueError) as error:
        return events, error
    return events, None


def parse_event(line: bytes, kind: ObjectKind, path: str) -> WatchEvent:
    """Returns the event in a line of the watch of a path.

    Raises ApiError for an event of type ERROR, and msgspec.DecodeError, which is a ValueError.
    """
    event = _LINE.decode(line)
    if event.type == "ERROR":
        status = msgspec.json.decode(event.object)
        raise api_error(int(status.get("code") or 500), status, call=f"watch {path}")
    if event.type == "BOOKMARK":
        return WatchEvent(event.type, read_version(event.object))
    seen = Seen.read(event.object, kind)
    return WatchEvent(event.type, str(seen.version), seen)
