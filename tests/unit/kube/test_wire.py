"""Parsing of what an API server sends, and of what something else at its address may send."""

from __future__ import annotations

import json

import msgspec
import pytest

from omni_kube.api.wire import parse_event, parse_page
from omni_kube.errors import ApiError, GoneError
from omni_kube.objects import ObjectKey
from omni_operator.kinds import KIND_BY_NAME

SERVICE = KIND_BY_NAME["Service"]
METADATA = {"name": "s", "namespace": "ns", "resourceVersion": "7"}


def test_pages_and_what_comes_after() -> None:
    listed = {"metadata": {"resourceVersion": "9", "continue": "more"}, "items": [{"metadata": METADATA}]}
    page = parse_page(json.dumps(listed).encode(), SERVICE)
    assert ([item.key for item in page.items], page.version, page.rest) == (
        [ObjectKey("Service", "ns", "s")],
        "9",
        "more",
    )
    assert parse_page(b'{"metadata": {}, "items": null}', SERVICE) == ([], "", "")


def test_events_bookmarks_and_errors() -> None:
    event = parse_event(json.dumps({"type": "ADDED", "object": {"metadata": METADATA}}).encode(), SERVICE, "/p")
    assert (event.type, event.version) == ("ADDED", "7")
    assert event.seen is not None
    mark = {"type": "BOOKMARK", "object": {"kind": "Service", "metadata": {"resourceVersion": "12", "name": ""}}}
    assert parse_event(json.dumps(mark).encode(), SERVICE, "/p") == ("BOOKMARK", "12", None)
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}}
    with pytest.raises(GoneError, match="too old"):
        parse_event(json.dumps(gone).encode(), SERVICE, "/p")
    with pytest.raises(ApiError):
        parse_event(b'{"type": "ERROR", "object": {}}', SERVICE, "/p")


@pytest.mark.parametrize(
    "content",
    [b"<html>", b"", b"[]", b'{"items": []}', b'{"metadata": {}, "items": [{}]}', b'{"metadata": {"continue": 1}}'],
)
def test_what_is_no_page(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        parse_page(content, SERVICE)


@pytest.mark.parametrize(
    "line",
    [b"<html>", b"{}", b'{"type": "ADDED"}', b'{"type": "ADDED", "object": {}}', b'{"type": "BOOKMARK", "object": 1}'],
)
def test_what_is_no_event(line: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        parse_event(line, SERVICE, "/p")
