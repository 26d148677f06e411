"""The chart's generated files match values.yaml. The chart's RBAC rules are those of manifests/rbac."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "omnipipeline"


def test_generated_files_are_not_stale() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.chart_docs", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def find_property(schema: dict[str, Any], path: str) -> dict[str, Any]:
    for part in path.split("."):
        schema = schema["properties"][part]
    return schema


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("replicas", {"type": "integer", "minimum": 0}),
        ("operator.workers", {"type": "integer", "minimum": 1, "maximum": 64}),
        ("operator.logFormat", {"type": "string", "enum": ["json", "text"]}),
        ("watchNamespaces", {"type": "array", "uniqueItems": True}),
        ("tolerations", {"type": "array", "items": {"type": "object"}}),
        ("image.digest", {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}),
        ("resources", {"type": "object"}),
        ("crds.install", {"type": "boolean"}),
    ],
)
def test_schema_knows_types_words_and_bounds(path: str, expected: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    found = find_property(schema, path)
    assert {key: found.get(key) for key in expected} == expected
    assert found["description"]


def test_schema_is_closed_where_the_chart_names_the_keys() -> None:
    """The schema refuses unknown keys, except in objects that the chart copies into Kubernetes objects as they are."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert find_property(schema, "image")["additionalProperties"] is False
    assert "additionalProperties" not in find_property(schema, "resources")


def test_labels_and_annotations_are_strings() -> None:
    """Kubernetes refuses a number as a label, and `--set` makes a number of 1."""
    maps = {name: part for name, part in list_parts().items() if name.lower().endswith(("labels", "annotations"))}
    assert len(maps) > 12
    kinds = {name: [value["type"] for value in part["patternProperties"].values()] for name, part in maps.items()}
    assert [name for name, kind in kinds.items() if kind != [["string", "null"]]] == []


def rules_in(file: str) -> dict[str, Any]:
    """Returns the RBAC rules in a file of manifests/rbac: name of the role -> rules."""
    documents = list(yaml.safe_load_all((ROOT / "manifests" / "rbac" / file).read_text()))
    roles = [item for item in documents if item["kind"] in ("Role", "ClusterRole")]
    return {item["metadata"]["name"]: item["rules"] for item in roles}


def test_an_operator_of_one_namespace_may_do_there_what_one_of_the_cluster_may_do_everywhere() -> None:
    """The Roles for a single namespace have the same rules as the ClusterRoles."""
    assert rules_in("namespaced.yaml") == rules_in("cluster.yaml")
    assert len(rules_in("cluster.yaml")) == 2


def test_the_charts_rules_are_those_of_the_plain_manifests() -> None:
    charted = yaml.safe_load((CHART / "files" / "operator-rules.yaml").read_text())
    assert charted == rules_in("cluster.yaml")["omnipipeline-operator"]


def list_parts() -> dict[str, Any]:
    """Returns every part of the schema: path -> schema."""
    found: dict[str, Any] = {}
    pending = [("", json.loads((CHART / "values.schema.json").read_text()))]
    while pending:
        name, part = pending.pop()
        found[name] = part
        pending += [(f"{name}.{key}", value) for key, value in part.get("properties", {}).items()]
    return found


def test_every_list_says_what_it_holds() -> None:
    lists = {name: part.get("items") for name, part in list_parts().items() if part.get("type") == "array"}
    assert len(lists) > 8
    assert [path for path, items in lists.items() if not items] == []


def test_the_charts_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]
