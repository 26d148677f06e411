"""The exported schemas match the types. Every field has a description, and lists, texts and numbers have bounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.export_schemas import list_stale

from omni_proto.pipeline import OmniPipeline
from omni_proto.stage_config import StageConfig

ROOT = Path(__file__).parents[4]


def test_exported_schemas_are_not_stale() -> None:
    assert list_stale() == [], "run `make schemas`"


def test_stage_config_schema_is_closed() -> None:
    schema = json.loads((ROOT / "docs" / "reference" / "stage-config.schema.json").read_text())
    assert schema["additionalProperties"] is False
    assert "schemaVersion" in schema["properties"]


def properties(schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for owner, definition in [("", schema), *schema.get("$defs", {}).items()]:
        for name, value in definition.get("properties", {}).items():
            yield f"{owner}.{name}", value


def test_every_field_is_described_and_bounded() -> None:
    for model in (OmniPipeline, StageConfig):
        for name, value in properties(model.model_json_schema(by_alias=True)):
            # pydantic leaves out the description of a field if it equals that of the field's type.
            assert value.get("description") or "$ref" in value, f"{name} has no description"
            for variant in [value, *value.get("anyOf", [])]:
                if variant.get("type") == "array":
                    assert "maxItems" in variant, f"{name} is a list without a bound"
                if variant.get("type") == "string" and name not in {"Metadata.labels", "Metadata.annotations"}:
                    assert {"maxLength", "enum", "const"} & set(variant), f"{name} is text without a bound"
                if variant.get("type") in ("integer", "number"):
                    assert {"maximum", "const"} & set(variant), f"{name} is a number without a bound"
