"""Writes the results: the status when it has changed, and the Events from events.py."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from omni_kube.api.client import ApiClient
from omni_kube.errors import ApiError, BeingTerminatedError
from omni_kube.objects import Manifest
from omni_operator.kinds import EVENTS, FIELD_MANAGER, PIPELINES
from omni_operator.state.observed import Observed
from omni_operator.status.conditions import CONDITION_TYPES, format_time
from omni_operator.status.events import EventData

MAX_EVENT_MESSAGE: Final = 1024
"""Maximum length of an Event's message, in bytes: what the API server allows for a note of events.k8s.io."""

UNDECLARED: Final = re.compile(r"\.status((?:\.\w+|\[[^\]\n]*\])+): field not declared in schema")
"""What the API server says about a status with a field that the CRD lacks."""
_INDEX: Final = re.compile(r"\[[^\]]*\]")
_MAX_ATTEMPTS: Final = 6
"""Maximum writes of one status: each may find out further fields, because messages are cut off."""
LACKING_S: Final = 600.0
"""Seconds after which a field that the CRD lacked is written again: the CRD may have been upgraded since."""

_log = logging.getLogger(__name__)


class LackingFields:
    """Fields of the status that the CRD does not have, because it is older than the operator.

    The API server refuses a status as a whole if it has one of them.
    """

    def __init__(self) -> None:
        self._until: dict[tuple[str, ...], float] = {}

    def learn(self, message: str, now: float) -> bool:
        """Note the fields that an error of the API server names. Returns whether it names any. now: seconds."""
        found = {tuple(_INDEX.sub("", path).strip(".").split(".")) for path in UNDECLARED.findall(message)}
        if new := found - self._until.keys():
            names = ", ".join(sorted(".".join(("status", *path)) for path in new))
            _log.warning("the CRD is older than the operator, so it lacks %s; apply manifests/crd", names)
        self._until |= dict.fromkeys(found, now + LACKING_S)
        return bool(found)

    def strip(self, status: Mapping[str, Any], now: float) -> dict[str, Any]:
        """Returns the status without the fields that the CRD lacks. now: seconds."""
        self._until = {path: until for path, until in self._until.items() if until > now}
        stripped = dict(status)
        for path in self._until:
            stripped = _without(stripped, path)
        return stripped


def _without(value: Any, path: tuple[str, ...]) -> Any:
    """Returns a value without the fields at a path; items of a list have no name in the path."""
    if isinstance(value, list):
        return [_without(item, path) for item in value]
    if not isinstance(value, Mapping) or path[0] not in value:
        return value
    rest = {name: inner for name, inner in value.items() if name != path[0]}
    return rest if len(path) == 1 else {**value, path[0]: _without(value[path[0]], path[1:])}


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


async def write_status(
    client: ApiClient, observed: Observed, status: Mapping[str, Any], lacking: LackingFields, clock: Callable[[], float]
) -> Manifest:
    """Write the status, without fields that the CRD lacks. Returns the updated pipeline. clock: returns seconds.

    Raises ConflictError if the pipeline has changed since it was observed, or has been replaced by another one.
    """
    metadata = observed.pipeline["metadata"]
    manifest = {
        "apiVersion": PIPELINES.api_version,
        "kind": PIPELINES.kind,
        "metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion")},
    }
    for _ in range(_MAX_ATTEMPTS):
        try:
            return await client.apply_status(PIPELINES, {**manifest, "status": lacking.strip(status, clock())})
        except ApiError as error:
            if not lacking.learn(error.message, clock()):
                raise
    return await client.apply_status(PIPELINES, {**manifest, "status": lacking.strip(status, clock())})


async def write_events(
    client: ApiClient, observed: Observed, events: Iterable[EventData], identity: str, now: datetime
) -> None:
    """Write Events about the pipeline. A failed write is only logged, because the status has the same content."""
    for event in events:
        try:
            await client.create(EVENTS, build_event(observed, event, identity, now))
        except BeingTerminatedError:
            return  # Events go with their namespace
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
