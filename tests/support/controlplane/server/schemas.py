"""JSON schemas for kubeconform, made from the API server's OpenAPI document. So they match its version exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.controlplane.server.api import Api, eventually

_PREFIX = "#/definitions/"
LOCATION = "{{ .ResourceKind }}.json"
"""File name of a kind's schema, in kubeconform's template language."""


def write_schemas(api: Api, directory: Path, kinds: Iterable[tuple[str, str]]) -> None:
    """Writes a schema that allows no unknown fields for each (apiVersion, kind).

    Waits for the kinds, because the API server publishes the schemas of a CRD some time after it serves its objects.
    """
    wanted = list(kinds)

    def published() -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = api.call("GET", "/openapi/v2")["definitions"]
        for api_version, kind in wanted:
            _find(found, api_version, kind)
        return found

    definitions = eventually(published, why="the schemas are published")
    closed = {name: _close(name, definition) for name, definition in definitions.items()}
    for api_version, kind in wanted:
        name = _find(definitions, api_version, kind)
        document = {"$ref": _PREFIX + name, "definitions": {used: closed[used] for used in _reachable(closed, name)}}
        (directory / f"{kind.lower()}.json").write_text(json.dumps(document))


def _find(definitions: dict[str, dict[str, Any]], api_version: str, kind: str) -> str:
    group, _, version = api_version.rpartition("/")
    wanted = {"group": group, "version": version, "kind": kind}
    for name, definition in definitions.items():
        if wanted in definition.get("x-kubernetes-group-version-kind", []):
            return name
    raise LookupError(f"the API server has no {kind} of {api_version}")


def _close(name: str, value: Any) -> Any:
    if name.endswith(".IntOrString"):
        return {"type": ["integer", "string"]}
    if isinstance(value, list):
        return [_close("", item) for item in value]
    if not isinstance(value, dict):
        return value
    closed = {key: _close("", item) for key, item in value.items()}
    if "properties" in closed and "additionalProperties" not in closed:
        closed["additionalProperties"] = False
    return closed


def _reachable(definitions: dict[str, Any], name: str) -> set[str]:
    found: set[str] = set()
    pending = [name]
    while pending:
        current = pending.pop()
        if current not in found:
            found.add(current)
            pending += _references(definitions[current])
    return found


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [found for item in value for found in _references(item)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"].removeprefix(_PREFIX)] if isinstance(value.get("$ref"), str) else []
    return own + [found for item in value.values() for found in _references(item)]
