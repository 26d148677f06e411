"""Which keywords of a JSON Schema are enforced, alone and beside each other, and how the others are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_stage.forms.schema import ANNOTATIONS, MAX_ONE_OF, UnsupportedSchemaError, admit_schema
from support.tables import each_row

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


def tagged(kind: str) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}


@each_row(
    "schema",
    [
        True,
        {},
        OBJECT,
        {**OBJECT, "additionalProperties": False},
        {**OBJECT, "additionalProperties": {"type": "string"}},
        {**OBJECT, "unevaluatedProperties": False},
        {**OBJECT, "maxProperties": 3},
        {"properties": {"minLength": {"type": "integer"}, "not": {"type": "string"}}},
        {"type": "object", "patternProperties": {"^[a-z]+$": {"type": "integer"}}},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "array", "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1.5}, "maxItems": 3},
        {"type": "array", "prefixItems": [{"type": "null"}], "items": False},
        {"type": ["string", "null"], "maxLength": 3.0},
        {"type": "string", "pattern": "^[a-z]+$"},
        {"type": "string", "format": "date"},
        {"type": "string", "format": "uri", "minLength": 1, "title": "Url"},
        {"type": "string", "format": "password", "minLength": 8},
        {"type": "array", "items": {"type": "string", "nullable": False}, "uniqueItems": False},
        {"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/s", "type": "null"},
        {"type": "string", "minimum": 3},
        {"enum": [1, "a", None, {"a": [1.5]}]},
        {"const": "a", "type": "string"},
        {"enum": [1, 2], "type": "number"},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Name"},
        {"type": "object", "anyOf": [{"properties": {"a": {"type": "null"}}}, OBJECT]},
        {"allOf": [OBJECT], "description": "One"},
        {"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
        {"oneOf": [{"enum": [1, 2]}, {"const": 3}, {"const": True}, {"type": "string"}]},
        {"oneOf": [tagged("x"), tagged("y")], "discriminator": {"propertyName": "kind"}},
        {"$defs": {"x": tagged("x"), "y": tagged("y")}, "oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]},
        {"$defs": {"unused": {"not": {}}}, "type": "null"},
        {"$id": "https://example.com/s", "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "null"},
        {"type": "object", "properties": {"next": {"$ref": "#"}, "x": {"$ref": "#/properties/next"}}},
        {"type": "null", "x-anything": 1, **dict.fromkeys(ANNOTATIONS, "text")},
    ],
)
def test_enforced_schemas_pass(schema: Any) -> None:
    before = json.dumps(schema)
    assert admit_schema(schema) is not schema or schema is True
    assert json.dumps(schema) == before


@each_row(
    "schema, says",
    [
        (False, "false"),
        ({"type": "object", "properties": {"a": False}}, "properties/a"),
        ({"not": {"type": "string"}}, '"not"'),
        ({"if": {}, "then": {}}, '"if"'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"type": "array", "contains": {}}, '"contains"'),
        ({"type": "integer", "multipleOf": 2}, '"multipleOf"'),
        ({"dependentRequired": {}, **OBJECT}, '"dependentRequired"'),
        ({"dependentSchemas": {}, **OBJECT}, '"dependentSchemas"'),
        ({"$anchor": "a", "type": "null"}, r'"\$anchor"'),
        ({"$dynamicRef": "#a"}, r'"\$dynamicRef"'),
        ({"type": "string", "nullable": True}, '"nullable"'),
        ({"type": "string", "maxlength": 3}, '"maxlength"'),
        ({"anyOf": [{"type": "object", "properties": {"b": {"$id": "x", "type": "null"}}}]}, r'"\$id"'),
        ({"minimum": 3}, '"minimum" without "type"'),
        ({"pattern": "a"}, '"pattern" without "type"'),
        ({"type": "text"}, '"type"'),
        ({"type": 3}, '"type"'),
        ({"type": "string", "pattern": "a", "maxLength": 3}, '"maxLength|"minLength" beside "pattern"'),
        ({"type": "string", "format": "date", "minLength": 3}, '"minLength" beside "format"'),
        ({"type": "string", "format": "uri-reference", "minLength": 1}, '"minLength" beside "format"'),
        ({"id": {"type": "string"}}, '"id"'),
        ({"type": "string", "format": ["date"]}, '"format" with this value'),
        ({"type": "integer", "format": {}}, '"format" of a number'),
        ({"type": ["number", "null"], "format": ["float"]}, '"format" of a number'),
        ({"enum": ["\ud800"]}, "surrogate"),
        ({"type": "string", "format": "date", "pattern": "a"}, '"format" beside "pattern"'),
        ({"type": "string", "pattern": "^(?=.*[0-9])[a-z]+$"}, "lookahead"),
        ({"type": "string", "format": "color"}, '"format" with this value'),
        ({"type": "string", "format": "json-pointer"}, '"format" with this value'),
        ({"type": "string", "maxLength": -1}, '"maxLength"'),
        ({"type": "array", "minItems": 1.5}, '"minItems"'),
        ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, '"exclusiveMinimum"'),
        ({"const": 1 << 70}, "64 bits"),
        ({"type": "integer", "maximum": 1 << 63}, "64 bits"),
        ({"enum": []}, '"enum" without values'),
        ({"const": 1, "type": "string"}, '"type" beside "const"'),
        ({"enum": ["a", 1], "type": "string"}, '"type" beside "enum"'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}, "maximum": 3}, r'"maximum" beside "\$ref"'),
        ({"$ref": "https://example.com/s"}, r'"\$ref"'),
        ({"$ref": "#a"}, r'"\$ref"'),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {}}}, r'"\$ref"'),
        ({"$ref": "#/$defs/none"}, r'"\$ref"'),
        ({"allOf": [OBJECT, OBJECT]}, '"allOf" of several'),
        ({"allOf": [OBJECT], "required": ["b"]}, '"required" beside "allOf"'),
        ({"anyOf": [OBJECT], "properties": {}}, '"properties" beside "anyOf"'),
        ({"anyOf": [{"type": "string"}, {"type": "null"}], "type": "string"}, '"type" beside "anyOf"'),
        ({"anyOf": []}, '"anyOf" without schemas'),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, '"oneOf"'),
        ({"oneOf": [{"const": 1}, {"enum": [1.0, 2]}]}, '"oneOf"'),
        ({"oneOf": [tagged("x"), tagged("x")]}, '"oneOf"'),
        ({"oneOf": [OBJECT, tagged("x")]}, '"oneOf"'),
        ({"oneOf": [{"const": number} for number in range(MAX_ONE_OF + 1)]}, '"oneOf" of more'),
        ({"type": "object", "required": ["a"]}, '"required" of a name'),
        ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "several patterns"),
        ({**OBJECT, "patternProperties": {"a": {}}}, '"patternProperties" beside "properties"'),
        ({**OBJECT, "propertyNames": {"pattern": "a"}}, '"propertyNames" beside "properties"'),
        ({"type": "object", "propertyNames": {"type": "integer"}}, '"propertyNames"'),
        ({"type": "object", "minProperties": 2}, '"minProperties"'),
        ({"type": "array", "items": [{}], "prefixItems": [{}]}, 'beside "prefixItems"'),
        ({"type": "array", "items": {}, "unevaluatedItems": False}, '"unevaluatedItems"'),
    ],
)
def test_what_is_not_enforced_is_named_with_its_place(schema: Any, says: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=says) as refused:
        admit_schema({"type": "object", "properties": {"here": schema}} if "$" not in json.dumps(schema) else schema)
    assert "#" in str(refused.value)


def test_schemas_that_xgrammar_would_take_for_one_are_kept_separate() -> None:
    """Its cache leaves out what is below a property with the name of an annotation."""
    one, other = ({"properties": {"title": {"type": kind}}, "required": ["title"]} for kind in ("integer", "null"))
    admitted = admit_schema({"anyOf": [one, other]})
    marks = [[name for name in arm.items() if name[0].startswith("x-")] for arm in admitted["anyOf"]]
    assert marks[0]
    assert marks[0] != marks[1]


def test_long_chains_of_references_are_read() -> None:
    """Neither recursion nor repetition: each schema is read once."""
    chain: dict[str, Any] = {
        f"d{number}": {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(1500)
    }
    admit_schema({"$defs": {**chain, "d1500": {"type": "null"}}, "$ref": "#/$defs/d0"})


def fan(arms: int, depth: int, leaf: Any) -> dict[str, Any]:
    """Returns $defs whose "a0" stands for arms ** depth schemas."""
    inner = {f"a{level}": {"anyOf": [{"$ref": f"#/$defs/a{level + 1}"}] * arms} for level in range(depth)}
    return {**inner, f"a{depth}": leaf}


@each_row(
    "schema",
    [
        {"oneOf": [{"$ref": "#/$defs/a0"}, {"type": "integer"}], "$defs": fan(8, 14, {"type": "string"})},
        {"oneOf": [{"$ref": "#/$defs/a0"}, {"const": 1}], "$defs": fan(8, 14, {"enum": ["a", "b"]})},
        {"type": "string", "anyOf": [{"$ref": "#/$defs/a0"}], "$defs": fan(8, 14, {"type": "string"})},
        {"allOf": [{"$ref": "#/$defs/a"}] * 2400, "$defs": {"a": {"type": "object", "required": ["x"] * 5000}}},
    ],
)
def test_what_few_references_multiply_is_refused(schema: Any) -> None:
    """Each of these, of 1 to 60 KB, takes hours or gigabytes to read to its end."""
    with pytest.raises(UnsupportedSchemaError):
        admit_schema(schema)


def test_many_tagged_alternatives_are_proved() -> None:
    admit_schema(
        {"oneOf": [{"$ref": f"#/$defs/x{n}"} for n in range(64)], "$defs": {f"x{n}": tagged(str(n)) for n in range(64)}}
    )
