"""What SDKs write as JSON Schemas, and what becomes of it: tests/data/clients/schemas.yaml."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr
import yaml

from omni_stage.forms.equal import COPIED_BYTES, IMPLY
from omni_stage.forms.grammar import WrongFormError
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form, check_form, compile_form
from support.forms import accepts, byte_tokens, write_text
from support.tables import each_row

ROWS: list[dict[str, Any]] = yaml.load(
    Path("tests/data/clients/schemas.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
"""See the head of the file."""
FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER
TEXTS = 2
STAMPS = {"date-time": re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")}
"""What jsonschema checks only with further libraries."""


@pytest.fixture(scope="module")
def compiler() -> xgr.GrammarCompiler:
    return xgr.GrammarCompiler(byte_tokens(), max_threads=1)


def written(compiler: xgr.GrammarCompiler, schema: Any, count: int) -> list[str]:
    """Returns texts that the schema's grammar allows."""
    compiled = compile_form(compiler, Form("json", json.dumps(admit_schema(schema))))
    texts = [write_text(compiled, random.Random(seed)) for seed in range(count)]
    return [text.decode(errors="replace") for text in texts if text is not None]


def test_each_schema_gets_its_verdict() -> None:
    wrong = []
    for row in ROWS:
        try:
            check_form(Form("json", json.dumps(admit_schema(row["schema"]))))
            said = None
        except (UnsupportedSchemaError, WrongFormError) as error:
            said = str(error)
        if (said is None) is not (row["verdict"] == "enforced") or row.get("says", "") not in (said or ""):
            wrong.append((row["client"], said))
    assert wrong == []


def test_the_texts_of_enforced_schemas_fit_them(compiler: xgr.GrammarCompiler) -> None:
    checked = 0
    for row in ROWS:
        if row["verdict"] == "refused":
            continue
        schema = row["schema"]
        older = "additionalItems" in json.dumps(schema) or '"items": [' in json.dumps(schema)
        draft = jsonschema.Draft7Validator if older else jsonschema.Draft202012Validator
        for text in written(compiler, schema, TEXTS):
            if "\ufffd" in text:  # the walk cut a character in two, as a real vocabulary cannot
                continue
            draft(schema).validate(json.loads(text))
            checked += 1
    assert checked > len(ROWS)


@pytest.mark.parametrize("form", IMPLY)
def test_the_patterns_that_stand_for_a_format_imply_it(compiler: xgr.GrammarCompiler, form: str) -> None:
    for pattern in IMPLY[form]:
        texts = written(compiler, {"type": "string", "format": form, "pattern": pattern}, 30)
        assert texts
        for text in texts:
            value = json.loads(text)
            assert re.fullmatch(pattern, value)
            assert STAMPS[form].fullmatch(value) if form in STAMPS else FORMATS.conforms(value, form), value


@each_row(
    "schema, right, wrong",
    [
        ({"type": "integer", "format": "int32"}, ["-2147483648", "2147483647"], ["-2147483649", "2147483648"]),
        ({"type": "integer", "format": "uint8", "minimum": -5, "maximum": 900}, ["0", "255"], ["-1", "256"]),
        ({"type": "integer", "format": "int32", "exclusiveMinimum": 3}, ["4"], ["3", "2147483648"]),
        ({"type": ["integer", "null"], "format": "int64"}, ["9223372036854775807", "null"], ["9223372036854775808"]),
        (
            {"type": "string", "format": "date", "minLength": 1},
            ['"2024-02-29"', '"2000-02-29"', '"2023-06-30"', '"2023-12-31"'],
            ['"2023-06-31"', '"2023-02-29"', '"1900-02-29"', '"2023-13-01"', '"2023-00-10"', '"2023-1-10"', '""'],
        ),
        (
            {"type": ["string", "null"], "format": "date-time"},
            ['"2023-06-30T23:59:59Z"', '"2024-02-29T00:00:00.123456+05:30"', "null"],
            ['"2023-06-31T00:00:00Z"', '"2023-06-30T24:00:00Z"', '"2023-06-30T00:00:00"', '"2023-06-30"'],
        ),
        (
            {"type": "string", "format": "time"},
            ['"23:59:59Z"', '"00:00:00.123456-05:30"'],
            ['"12:00:60Z"', '"23:59:60Z"', '"24:00:00Z"', '"12:60:00Z"', '"12:00:00"', '"12:00:00+24:00"'],
        ),
        (
            {"type": "string", "format": "ipv4"},
            ['"0.0.0.0"', '"255.249.99.10"'],
            ['"01.2.3.4"', '"1.2.3.04"', '"1.2.3.256"', '"1.2.3"', '"1.2.3.4.5"'],
        ),
        (
            {"type": ["string", "null"], "format": "ipv6"},
            ['"::"', '"2001:db8::1"', '"1:2:3:4:5:6:7:8"', "null"],
            ['"::01.2.3.4"', '"1::2::3"', '"1:2:3:4:5:6:7"', '"::12345"', '"fe80::1%eth0"'],
        ),
        (
            {"type": "string", "format": "hostname"},
            [*map(json.dumps, ["a", "example.com", f"{'a' * 63}.{'B-9' * 21}.{'c' * 63}", "a.b.c.d.e.example.com"])],
            [*map(json.dumps, ["", "a" * 64, f"a.{'b' * 64}", "-a", "a-", "a..b", "a.", "a_b"])],
        ),
        ({"type": "number", "format": "int64"}, ["-1.5", "9223372036854774784"], ["9223372036854775808", "-1e30"]),
        ({"items": [{"type": "null"}, {"type": "boolean"}], "additionalItems": False}, ["[null, true]"], ["[null, 1]"]),
        ({"items": [{"type": "null"}], "additionalItems": {"type": "null"}}, ["[null, null]"], ["[null, true]"]),
        (
            {"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"}, "required": ["a"]},
            ['{"a": null}', '{"a": null, "b": null}'],
            ['{"a": 1}', '{"c": null}', "{}"],
        ),
        (
            {"$defs": {"n": {"pattern": "^x+$"}}, "type": "object", "propertyNames": {"$ref": "#/$defs/n"}},
            ['{"xx": 1}'],
            ['{"y": 1}'],
        ),
        (
            {
                "$defs": {"a": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}},
                "allOf": [{"$ref": "#/$defs/a"}, {"type": "object", "properties": {"b": {"type": "null"}}}],
            },
            ['{"a": null}', '{"a": null, "b": null}'],
            ['{"b": null}', '{"a": null, "b": 1}'],
        ),
        ({"type": "object", "minProperties": 1}, ['{"a": 1}', '{"a": null, "b": [{}]}'], ["{}", "[1]"]),
        ({"type": "object", "maxProperties": 1}, ["{}", '{"a": 1}'], ['{"a": 1, "b": 2}']),
        ({"type": "string", "anyOf": [{"format": "ipv4"}, {"maxLength": 1}]}, ['"1.2.3.4"', '"a"'], ['"ab"', "3"]),
        ({"type": "string", "format": "uuid4"}, [], ['"00000000-0000-1000-8000-000000000000"']),
    ],
)
def test_what_is_rewritten_is_the_same(
    compiler: xgr.GrammarCompiler, schema: dict[str, Any], right: list[str], wrong: list[str]
) -> None:
    compiled = compile_form(compiler, Form("json", json.dumps(admit_schema(schema))))
    assert [text for text in right if not accepts(compiled, text)] == []
    assert [text for text in wrong if accepts(compiled, text)] == []


@each_row(
    "schema, says",
    [
        ({"type": "integer", "format": "uint128"}, '"format" of a number'),
        ({"type": "number", "minimum": (1 << 53) + 1}, '"minimum" of more than 53 bits'),
        ({"type": ["null", "number"], "exclusiveMaximum": -(1 << 63) + 1}, '"exclusiveMaximum" of more than 53 bits'),
        ({"type": "integer", "maximum": 10**4000}, '"maximum" that is no number of at most 64 bits'),
        ({"type": "integer", "format": "time-delta"}, '"format" of a number'),
        ({"type": "string", "format": "date", "pattern": "^a$"}, '"format" beside "pattern"'),
        ({"type": "string", "format": "color", "pattern": "^a$"}, '"format" with this value'),
        ({"allOf": [{"type": "object", "additionalProperties": False}, {"type": "object"}]}, '"allOf"'),
        # What stands beside a reference, an enum or allOf limits values further.
        ({"allOf": [{"type": "object"}, {"type": "object"}], "additionalProperties": False}, '"additionalProperties"'),
        (
            {
                "$defs": {"a": {"type": "object"}},
                "allOf": [{"$ref": "#/$defs/a", "additionalProperties": False}, {"type": "object"}],
            },
            '"allOf" of several',
        ),
        ({"type": "object", "propertyNames": {"enum": ["a"], "pattern": "^z"}}, '"pattern" beside "enum"'),
        ({"type": "object", "propertyNames": {"enum": ["a"], "const": "b"}}, '"enum" beside "const"'),
        (
            {"$defs": {"n": {"enum": ["a"]}}, "type": "object", "propertyNames": {"$ref": "#/$defs/n", "maxLength": 0}},
            '"propertyNames" of this "\\$ref"',
        ),
        ({"propertyNames": {"enum": ["a"]}, "additionalProperties": False}, '"additionalProperties": false beside'),
        ({"type": "object", "propertyNames": {"$ref": "#/$defs/none"}}, '"propertyNames" of this "\\$ref"'),
        (
            {"allOf": [{"type": "object", "properties": {"a": True}}, {"type": "object", "properties": {"a": {}}}]},
            "allOf",
        ),
    ],
)
def test_what_cannot_be_rewritten_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedSchemaError, match=says):
        admit_schema(schema)


ENDLESS = {"allOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}]}
Y = {"type": "object", "properties": {"q": {"type": "string"}}}


@each_row(
    "properties",
    [
        {"p": ENDLESS},
        {"p": {"type": "array", "items": ENDLESS}},
        {"p": {"allOf": [{"$ref": "#/$defs/y"}, {"$ref": "#/$defs/z"}]}},
    ],
)
@pytest.mark.parametrize("root", [ENDLESS, {"$ref": "#/$defs/x"}])
def test_an_all_of_inside_what_it_joins_is_refused(root: dict[str, Any], properties: dict[str, Any]) -> None:
    """Each copy of what it joins holds it again, so writing it as one object would never end."""
    z = {"type": "object", "properties": {"r": ENDLESS}}
    schema = {**root, "$defs": {"x": {"type": "object", "properties": properties}, "y": Y, "z": z}}
    with pytest.raises(UnsupportedSchemaError, match='"allOf" of several'):
        admit_schema(json.loads(json.dumps(schema)))


def test_copies_are_limited() -> None:
    """Each of a few hundred objects would copy the largest definition, and each copy would copy again."""
    large = {"type": "object", "properties": {f"p{number}": {"type": "null"} for number in range(200)}}
    joined = {"allOf": [{"$ref": "#/$defs/large"}, {"type": "object", "properties": {"z": {"type": "null"}}}]}
    schema = {"$defs": {"large": large}, "prefixItems": [joined for _ in range(500)]}
    with pytest.raises(UnsupportedSchemaError, match='"allOf" of several'):
        admit_schema(json.loads(json.dumps(schema)))
    assert len(json.dumps(admit_schema({**schema, "prefixItems": [joined] * 8}))) < 3 * COPIED_BYTES
