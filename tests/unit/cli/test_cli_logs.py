"""`omnipipe logs`: lines of several pods as one log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_cli.commands.logs import LogsError, LogSource, format_entry, local_logs, parse, select
from omni_cli.main import app

THINKER, TALKER = LogSource("thinker", "p-thinker-0"), LogSource("talker", "p-talker-0")


def as_json(seconds: str, request: str, message: str, **more: str) -> str:
    time = f"2026-11-27T10:00:{seconds}+00:00"
    line = {"time": time, "level": "INFO", "stage": "thinker", "request_id": request, "logger": "a", "message": message}
    return json.dumps({**line, **more})


JSON = [as_json("00.100", "", "ready"), as_json("02.500", "r-1", "request ended", code="OK")]
TEXT = """
2026-11-27T10:00:01.000+00:00 ERROR talker r-1 omni.run: it broke
Traceback (most recent call last):
  in run
2026-11-27T10:00:03.000+00:00 INFO talker r-10 omni.run: request ended code=OK
""".strip().splitlines()


def test_the_lines_of_all_stages_are_one_log() -> None:
    entries = list(select({THINKER: JSON, TALKER: TEXT}, None))
    assert [(entry.source.stage, entry.text.splitlines()[0]) for entry in entries] == [
        ("thinker", "ready"),
        ("talker", "talker r-1 omni.run: it broke"),
        ("thinker", "request ended request_id=r-1 code=OK"),
        ("talker", "talker r-10 omni.run: request ended code=OK"),
    ]
    assert entries[1].text.endswith("\n  in run")
    assert format_entry(entries[1], 7).startswith("10:00:01.000 talker  ERROR talker r-1")


def test_a_request_is_a_whole_word_and_a_stage_is_a_stage() -> None:
    logs = {THINKER: JSON, TALKER: TEXT}
    assert [entry.source.stage for entry in select(logs, "r-1")] == ["talker", "thinker"]
    assert [entry.source.stage for entry in select(logs, "talker")] == ["talker", "talker"]
    assert not list(select(logs, "r"))
    assert next(iter(select(logs, "r-1"))).to_json() == {
        "from": "p-talker-0",
        "stage": "talker",
        "time": "2026-11-27T10:00:01.000+00:00",
        "level": "ERROR",
        "message": "talker r-1 omni.run: it broke\nTraceback (most recent call last):\n  in run",
    }


def test_odd_lines_are_kept_and_bounded() -> None:
    lines = [
        "no time",
        "{",
        '{"time": 1}',
        "2026-11-27T10:00:00.000+00:00 INFO x: " + "y" * 200_000,
        *["z" * 60_000] * 9,
    ]
    first, second = parse(lines, THINKER)
    assert first.text == 'no time\n{\n{"time": 1}'
    assert len(second.text) < 200_000


def test_the_logs_of_a_local_run(tmp_path: Path) -> None:
    (tmp_path / "talker.log").write_text("\n".join(TEXT))
    (tmp_path / "thinker.log").write_text("\n".join(JSON))
    result = CliRunner().invoke(app, ["logs", "r-1", "--log-dir", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert [line.split()[1] for line in result.stdout.splitlines() if line[:2] == "10"] == ["talker", "thinker"]
    assert CliRunner().invoke(app, ["logs", "nothing", "--log-dir", str(tmp_path)]).exit_code == 1
    assert CliRunner().invoke(app, ["logs", "--since", "soon"]).exit_code == 2
    (tmp_path / "none").mkdir()
    with pytest.raises(LogsError, match="has no"):
        local_logs(tmp_path / "none")
