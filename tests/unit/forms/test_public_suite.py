"""The whole public JSON-Schema-Test-Suite: what its schemas allow is written, and what they forbid is not."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xgrammar as xgr

from omni_stage.forms.grammar import WrongFormError
from omni_stage.forms.schema import UnsupportedSchemaError, admit_schema
from omni_stage.forms.trial import Form, check_form, compile_form
from support.forms import accepts, byte_tokens, write_text
from support.processes.bare_venv import find_uv
from support.processes.build_cache import cache_root, fill_once

pytestmark = pytest.mark.full

# The source distribution of jsonschema holds the suite.
SDIST = "jsonschema==4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
VALIDATORS = {
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
ANNOTATIONS = "content.json"
"""Tests of contentMediaType and contentEncoding, which say nothing about a value's validity since draft 2019-09."""
TEXTS = 30
"""Texts that are written for each schema."""


@pytest.fixture(scope="session")
def suite() -> Path:
    """The folder with the suite, downloaded once."""
    folder = cache_root() / "clients" / f"json-schema-suite-{SHA256[:16]}"

    def fill(building: Path) -> None:
        requirements = building / "requirements.txt"
        requirements.write_text(f"{SDIST} --hash=sha256:{SHA256}\n")
        command = [find_uv(), "tool", "run", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*command, "--dest", building, "--requirement", requirements], check=True, timeout=500)
        (archive,) = building.glob("*.tar.gz")
        if hashlib.sha256(archive.read_bytes()).hexdigest() != SHA256:
            raise RuntimeError(f"{archive.name} has another sha256 than {SHA256}")
        with tarfile.open(archive) as opened:
            opened.extractall(building, filter="data")

    if not folder.is_dir():
        fill_once(folder, "json-schema-suite", fill)
    return next(folder.glob("*/json/tests"))


def cases(folder: Path) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for file in sorted(folder.rglob("*.json")):
        if file.name == ANNOTATIONS:
            continue
        for case in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.relative_to(folder)}: {case['description']}", case["schema"], case["tests"]


@pytest.mark.parametrize("draft", VALIDATORS)
def test_no_accepted_schema_lets_a_wrong_value_through(suite: Path, draft: str) -> None:
    """A schema of the suite is refused, or each text that its grammar accepts fits it."""
    compiler = xgr.GrammarCompiler(byte_tokens(), max_threads=1)
    chosen, accepted, written, wrong = random.Random(0), 0, 0, []
    for name, schema, tests in cases(suite / draft):
        try:
            form = Form("json", json.dumps(admit_schema(schema)))
            check_form(form)
            compiled = compile_form(compiler, form)
        except (UnsupportedSchemaError, WrongFormError):
            continue
        accepted += 1
        values = [test["data"] for test in tests if not test["valid"]]
        wrong += [(name, value) for value in values if accepts(compiled, json.dumps(value))]
        validator = VALIDATORS[draft](schema)
        for _ in range(TEXTS):
            try:
                value = json.loads(write_text(compiled, chosen) or b"null")
            except UnicodeDecodeError:
                # The walk cut a character in two, as a real vocabulary cannot.
                continue
            written += 1
            wrong += [(name, value)] if not validator.is_valid(value) else []
    assert not wrong, wrong[:10]
    assert accepted > 50, accepted
    assert written > 10 * accepted
