"""Writes the results: the status when it has changed, and the Events from events.py."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.errors import ApiError
from omni_kube.objects import Manifest
from omni_operator.kinds import EVENTS, FIELD_MANAGER, PIPELINES
from omni_operator.state.observed import Observed
from omni_operator.status.conditions import CONDITION_TYPES, format_time
from omni_operator.status.events import EventData

MAX_EVENT_MESSAGE: Final = 1024
"""Maximum length of an Event's message, in bytes: what the API server allows for a note of events.k8s.io."""

UNDECLARED: Final = ".status.names: field not declared in schema"
"""What the API server says about a status with a field that the CRD lacks."""

_log = logging.getLogger(__name__)


def live_status(observed: Observed) -> dict[str, Any]:
    """Returns the live status without conditions that another writer has added."""
    status = dict(observed.pipeline.get("status") or {})
    if "conditions" in status:
        status["conditions"] = [item for item in status["conditions"] if item.get("type") in CONDITION_TYPES]
    return status


def is_minor(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Returns whether the conditions have the same types, statuses, reasons and generations, and the record of names is
    the same. The rest may differ."""
    return _essence(before) == _essence(after) and before.get("names") == after.get("names")


def _essence(status: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (item.get("type"), item.get("status"), item.get("reason"), item.get("observedGeneration"))
        for item in status.get("conditions", ())
    ]


async def write_status(client: ApiClient, observed: Observed, status: Mapping[str, Any]) -> Manifest:
    """Write the status. Returns the updated pipeline.

    Raises ConflictError if the pipeline has changed since it was observed, or has been replaced by another one.
    """
    metadata = observed.pipeline["metadata"]
    manifest = {
        "apiVersion": PIPELINES.api_version,
        "kind": PIPELINES.kind,
        "metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion")},
        "status": dict(status),
    }
    try:
        return await client.apply_status(PIPELINES, manifest)
    except ApiError as error:
        if UNDECLARED not in error.message:
            raise
        _log.warning("the CRD is older than the operator: no status.names; apply manifests/crd, restart the operator")
    manifest["status"] = {name: value for name, value in status.items() if name != "names"}
    return await client.apply_status(PIPELINES, manifest)


async def write_events(
    client: ApiClient, observed: Observed, events: Iterable[EventData], identity: str, now: datetime
) -> None:
    """Write Events about the pipeline. A failed write is only logged, because the status has the same content."""
    for event in events:
        try:
            await client.create(EVENTS, build_event(observed, event, identity, now))
        except ApiError as error:
            _log.warning("event %s could not be written: %s", event.reason, error)


def build_event(observed: Observed, event: EventData, identity: str, now: datetime) -> Manifest:
    """Returns the manifest of the Event."""
    metadata = observed.pipeline["metadata"]
    time = format_time(now)
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"{observed.name}.{secrets.token_hex(8)}", "namespace": observed.namespace},
        "involvedObject": {
            "apiVersion": PIPELINES.api_version,
            "kind": PIPELINES.kind,
            "name": observed.name,
            "namespace": observed.namespace,
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
        },
        "type": event.type,
        "reason": event.reason,
        "message": event.message.encode()[:MAX_EVENT_MESSAGE].decode(errors="ignore"),
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "reportingInstance": identity[:128],
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": event.count,
    }
