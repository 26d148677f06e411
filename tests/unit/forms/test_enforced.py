"""What xgrammar lets through for each schema that is accepted, compared with jsonschema."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr

from omni_stage.forms.grammar import WrongFormError
from omni_stage.forms.regex import check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form, check_form, compile_form
from support.forms import accepts, byte_tokens, random_schema, write_text

SUITE = json.loads((Path(__file__).parents[2] / "data/json_schema_suite/accepted.json").read_text(encoding="utf-8"))
"""The cases of the public JSON-Schema-Test-Suite (draft 2020-12, its MIT licence lies beside) whose schemas are
accepted, each with the values that do not fit it."""


@pytest.fixture(scope="module")
def compiler() -> xgr.GrammarCompiler:
    return xgr.GrammarCompiler(byte_tokens(), max_threads=1)


def check_texts(compiled: xgr.CompiledGrammar, schema: Any, chosen: random.Random, texts: int = 4) -> int:
    """Returns how many texts were checked."""
    validator, checked = jsonschema.Draft202012Validator(schema), 0
    for _ in range(texts):
        text = write_text(compiled, chosen)
        if text is None:
            continue
        try:
            value = json.loads(text)
        except UnicodeDecodeError:
            # The walk cut a character in two, as a real vocabulary cannot.
            continue
        validator.validate(value)
        checked += 1
    return checked


def test_no_keyword_of_the_public_suite_is_dropped(compiler: xgr.GrammarCompiler) -> None:
    chosen, checked = random.Random(0), 0
    for case in SUITE:
        schema = case["schema"]
        compiled = compile_form(compiler, Form("json", json.dumps(admit_schema(schema))))
        for value in case["wrong"]:
            for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
                assert not accepts(compiled, text), (schema, text)
        checked += check_texts(compiled, schema, chosen)
    assert checked > 200


def test_texts_of_random_schemas_fit_them(compiler: xgr.GrammarCompiler) -> None:
    chosen, accepted, checked = random.Random(7), 0, 0
    for _ in range(300):
        schema = random_schema(chosen)
        try:
            form = Form("json", json.dumps(admit_schema(schema)))
            check_form(form)
            compiled = compile_form(compiler, form)
        except (UnsupportedSchemaError, WrongFormError):
            continue
        accepted += 1
        checked += check_texts(compiled, schema, chosen, 5)
    assert accepted > 60
    assert checked > 200


@pytest.mark.parametrize(
    "expression",
    [
        *(r"\d{4}-\d{2}-\d{2}", "[a-z]{1,64}", r"(\w+,){1,5}", "^a|b$", "a.b", r"\s\S\W\D", "(a|b)*c?", r"[\]\-^.]+"),
        *("[^a-z]{2}", r"\t\u00e9\x41", "[ -~]{1,8}", "(?:a{2}|b){0,3}", '"[^"]*"', ""),
    ],
)
def test_texts_of_expressions_match_them_in_python(compiler: xgr.GrammarCompiler, expression: str) -> None:
    compiled = compile_form(compiler, Form("regex", check_regex(expression, in_json=False)))
    chosen = random.Random(3)
    for _ in range(20):
        text = write_text(compiled, chosen)
        if text is not None and "\ufffd" not in (decoded := text.decode(errors="replace")):
            assert re.fullmatch(expression.replace("(?<", "(?P<"), decoded), decoded


def test_strings_of_limited_length_hold_no_raw_control_characters(compiler: xgr.GrammarCompiler) -> None:
    compiled = compile_form(compiler, Form("json", '{"type": "string", "maxLength": 4}'))
    assert accepts(compiled, '"a é"')
    assert not accepts(compiled, '"a\tb"')
    assert not accepts(compiled, '"\x01"')


@pytest.mark.parametrize(
    "form",
    [
        Form("json", '{"$ref": "#"}'),
        Form("grammar", "root ::= root"),
        Form("grammar", 'root ::= "a" root'),
        Form("grammar", 'root ::= "a" | "b" x\nx ::= "c" x'),
        Form("json", '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}'),
        Form("json", '{"type": "string", "minLength": 3, "maxLength": 1}'),
        Form("grammar", "(" * 20_000),
        Form("grammar", "start: /a+/"),
        Form("regex", "a{1,100000000}"),
        Form("regex", "(((a){0,1000}){0,1000}){0,1000}b"),
        Form("regex", "(.*a.{200}){5}"),
        Form("regex", "([a-z]{0,30}[0-9]{0,30}){0,20}x"),
        Form("json", '{"type": "string", "pattern": "((([ab]){0,1000}){0,1000}){0,1000}b"}'),
        Form("json", '{"type": "string", "pattern": "(((a){0,1000}){0,1000}){0,1000}b"}'),
        Form("structural_tag", '{"type": "structural_tag", "format": {"type": "none"}}'),
    ],
)
def test_forms_that_fit_no_text_or_count_too_far_are_refused(form: Form) -> None:
    with pytest.raises(WrongFormError):
        check_form(form)


@pytest.mark.parametrize(
    ("form", "says"),
    [
        (Form("json", '{"type": "integer", "minimum": 5, "maximum": 4}'), "minimum greater than maximum"),
        (Form("json", '{"type": "integer", "minimum": 1.2}'), "must be a whole number"),
        (Form("json", '{"type": "array", "minItems": 3, "maxItems": 1}'), "minItems is greater than maxItems"),
        (Form("grammar", 'root ::= "secret'), "at line 1, column"),
    ],
)
def test_the_engine_s_reason_is_shown_without_the_form(form: Form, says: str) -> None:
    with pytest.raises(WrongFormError, match=says) as caught:
        check_form(form)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        *(
            Form("regex", text)
            for text in (r"\d{4}-\d{2}-\d{2}", "[a-z]{1,64}", r"(\w+,){1,5}", r"([0-9]{1,3}\.){3}x", ".{0,999}")
        ),
        Form("json", '{"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 255}}'),
        Form("json", '{"type": "object", "additionalProperties": {"type": "string", "maxLength": 4000}}'),
        Form("json", '{"type": "array", "maxItems": 9, "items": {"$ref": "#"}}'),
    ],
)
def test_ordinary_counts_pass(form: Form) -> None:
    check_form(form)


def random_expression(chosen: random.Random, depth: int) -> str:
    """Returns an expression over a, b and quotes."""
    kind = chosen.random()
    if not depth or kind < 0.3:
        return chosen.choice(("a", "b", "[ab]", "[^b]", "ab"))
    if kind < 0.5:
        return random_expression(chosen, depth - 1) + random_expression(chosen, depth - 1)
    inner = random_expression(chosen, depth - 1)
    if kind < 0.62:
        return f"(?:{inner}|{random_expression(chosen, depth - 1)})"
    return f"(?:{inner}){chosen.choice(('?', '?', '*', '+', '{2}', '{0,2}', '{1,2}', '{1,}', '{0,1}'))}"


def test_patterns_of_strings_allow_what_they_match_and_nothing_else(compiler: xgr.GrammarCompiler) -> None:
    """xgrammar itself would let "ac" through for a(bc*)?, and so the digits of a number without its point."""
    words = ["".join(word) for length in range(5) for word in itertools.product('ab"', repeat=length)]
    chosen = random.Random(11)
    for expression in [r"a(?:ba*)?", r"(?:ab|[ab]{1,2})|[ab]", *(random_expression(chosen, 4) for _ in range(120))]:
        schema = {"type": "string", "pattern": expression}
        compiled = compile_form(compiler, Form("json", json.dumps(admit_schema(schema))))
        matches = [word for word in words if '"' not in word and re.fullmatch(expression, word)]
        assert [word for word in words if accepts(compiled, f'"{word}"')] == matches, expression


def test_patterns_hold_no_character_that_json_escapes(compiler: xgr.GrammarCompiler) -> None:
    before = ("", "é", "😀", "[à-ü]", "[^a]?", r"\u00e9", "(?:中|b)?")
    for start, end in itertools.product(before, ("[^x]", ".", r"\D", r"\W", r"\S", "[ -~]", r"[\u0001-\uffff]")):
        compiled = compile_form(
            compiler, Form("json", json.dumps(admit_schema({"type": "string", "pattern": start + end})))
        )
        heads = ("", "é", "😀", "中")
        assert any(accepts(compiled, f'"{head}#"') for head in heads), start + end
        wrong = [
            head + char for head in heads for char in ('"', "\\", "\n", "\x01") if accepts(compiled, f'"{head}{char}"')
        ]
        assert wrong == [], start + end


def test_classes_of_what_does_not_match_exclude_what_any_dialect_does(compiler: xgr.GrammarCompiler) -> None:
    for expression, excluded in ((r"[^\s]", " \t\u00a0\u2028\u3000"), (r"[^\w-]", "a_é中-"), (r"[^\\s]", "\\s")):
        compiled = compile_form(compiler, Form("regex", check_regex(expression, in_json=False)))
        assert accepts(compiled, "#")
        assert not any(accepts(compiled, char) for char in excluded), expression
