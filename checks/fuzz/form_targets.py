"""Fuzz targets for forms of the text: what reads them takes little time, and what they let through fits them.

fuzz_edge.py ends an input that takes longer than ten seconds, as a crash. The vocabulary is small here, because a
million inputs are compiled; tests/unit/forms/test_trial_pool.py uses a large one.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache

import jsonschema
import xgrammar as xgr

from omni_stage.forms.grammar import WrongFormError
from omni_stage.forms.regex import UnsupportedRegexError, check_regex
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form, Tokens, check_form, compile_form, try_form
from support.forms import byte_tokens, random_schema, write_text

SLOW_S = 2.0
"""CPU seconds that reading one form may take."""
_PIECES = (
    *("a", "b", "[a-c]", r"\d", r"\w", ".", "(", "(?:", ")", "|", "*", "+", "?", "{0,3}", "{2}", "{0,90}", "{5,}", " "),
    *("^", "$", r"\n", '"', "[^a]", "(?=", r"\b", "é", "x?", "()", "{1000}"),
)
_WORDS = (
    *(
        "root",
        "x",
        "y",
        "::=",
        "|",
        '"a"',
        '"b"',
        "[a-z]",
        "(",
        ")",
        "*",
        "+",
        "?",
        "{0,90}",
        "\n",
        "\nroot ::= ",
        '""',
    ),
    *("\nx ::= ", "\ny ::= ", "root root", "x x x", "[^a]*"),
)


@cache
def _compiler() -> tuple[xgr.GrammarCompiler, Tokens]:
    info = byte_tokens()
    return xgr.GrammarCompiler(info, max_threads=1, cache_enabled=False), Tokens(info)


def expressions(data: bytes) -> None:
    """Reads a regular expression made of these bytes, as the form of the text and as a pattern."""
    text = "".join(_PIECES[byte % len(_PIECES)] for byte in data[:40])
    for in_json in (False, True):
        try:
            read = check_regex(text, in_json=in_json)
        except UnsupportedRegexError:
            continue
        _try(Form("json", json.dumps({"type": "string", "pattern": read})) if in_json else Form("regex", read))


def grammars(data: bytes) -> None:
    """Tries a grammar made of these bytes."""
    _try(Form("grammar", "root ::= " + " ".join(_WORDS[byte % len(_WORDS)] for byte in data[:40])))


def schemas(data: bytes) -> None:
    """Writes texts of a random schema, and compares them with jsonschema."""
    chosen = random.Random(data)
    schema = random_schema(chosen)
    try:
        form = Form("json", json.dumps(admit_schema(schema)))
        check_form(form)
        compiled = compile_form(_compiler()[0], form)
    except (UnsupportedSchemaError, WrongFormError):
        return
    validator = jsonschema.Draft202012Validator(schema)
    for _ in range(3):
        text = write_text(compiled, chosen)
        try:
            value = json.loads(text or b"{", strict=True)
        except UnicodeDecodeError:
            continue
        except json.JSONDecodeError:
            if text is not None:
                raise
            continue
        validator.validate(value)


def _try(form: Form) -> None:
    compiler, tokens = _compiler()
    began = time.thread_time()
    with suppress(WrongFormError):
        try_form(compiler, tokens, form)
    if time.thread_time() - began > SLOW_S:
        raise AssertionError(f"a trial took {time.thread_time() - began:.1f} s")


TARGETS: tuple[Callable[[bytes], None], ...] = (expressions, grammars, schemas)
