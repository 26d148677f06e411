"""docs/sizing.md has the figures of the committed result, and shows what `omnipipe plan` prints."""

from __future__ import annotations

import json
import shlex

from benchmarks.scaling.equal_gpus import PAGE, PICTURE, RESULT, TABLE, fill_page
from typer.testing import CliRunner

from omni_cli.main import app

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_tables_are_those_of_the_result() -> None:
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["tables"][TABLE]
    assert fill_page(rows, TEXT) == TEXT, "run python -m benchmarks.scaling.equal_gpus"
    assert f"images/{PICTURE.name}" in TEXT
    assert PICTURE.is_file()


def test_the_plan_is_what_the_command_prints() -> None:
    shown = TEXT.split("```console\n$ omnipipe ")[1].split("```")[0]
    command, _, output = shown.partition("\n")
    assert CliRunner().invoke(app, shlex.split(command)).stdout == output
