"""The chart's generated files are those of values.yaml and of the CRD; its rules are those of manifests/rbac."""

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
        [sys.executable, str(ROOT / "scripts" / "chart_docs.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
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
        ("operator.logFormat", {"type": "string", "enum": ["json", "text"]}),
        ("watchNamespaces", {"type": "array"}),
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
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert find_property(schema, "image")["additionalProperties"] is False
    assert "additionalProperties" not in find_property(schema, "nodeSelector")


def test_rules_are_those_of_the_plain_manifests() -> None:
    template = (CHART / "templates" / "_rules.tpl").read_text()
    body = template.split('define "omnipipeline.rules" -}}', 1)[1]
    rules = yaml.safe_load("\n".join(line for line in body.splitlines() if "{{" not in line))
    documents = yaml.safe_load_all((ROOT / "manifests" / "rbac" / "cluster.yaml").read_text())
    plain = next(item["rules"] for item in documents if item["kind"] == "ClusterRole")
    assert rules == plain


def test_the_charts_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == project["version"]
