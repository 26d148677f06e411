"""`omnipipe generate`: what is saved and reported if the text or a file cannot be written.

tests/pipeline/cli/test_cli_generate.py tests the command with stage servers.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omni_cli.commands.generate import Outputs, Screen, run_generate
from omni_cli.main import app
from support.peers.answering_entry import WORDS, serve_entry
from support.peers.hearing_entry import ANSWER, HEARD, serve_hearing

FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serve_entry() as (port, _):
        yield f"127.0.0.1:{port}"


def generate(endpoint: str, **outputs: Path | None) -> int:
    return run_generate(endpoint, {"text": "Hi", "timeout": 20}, Outputs(**outputs))


@pytest.mark.parametrize("saves", [True, False])
def test_text_that_cannot_be_shown_does_not_cost_the_audio(
    saves: bool, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.wav"
    with FULL.open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert generate(endpoint, out=file if saves else None) == 1
    said = capsys.readouterr().err.splitlines()
    assert said.pop() == "error: cannot write the text: No space left on device"
    assert said == ([f"{file}: 0.10 s of audio"] if saves else [])
    assert file.exists() is saves


def test_a_file_that_cannot_be_written_is_named(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate(endpoint, out=tmp_path / "a.wav", json_file=FULL) == 1
    shown = capsys.readouterr()
    assert shown.out == "".join(WORDS) + "\n"
    assert shown.err == "error: cannot write /dev/full: No space left on device\n"


def test_characters_that_the_terminal_does_not_have_are_escaped() -> None:
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    Screen(terminal, required=True).write("é \N{CJK UNIFIED IDEOGRAPH-4F60}")
    assert terminal.buffer.getvalue() == b"\xe9 \\u4f60"  # type: ignore[attr-defined]


def test_a_spoken_question_needs_no_text(tmp_path: Path) -> None:
    question = tmp_path / "q.wav"
    question.write_bytes(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0\x80\x3e\0\0\0\x7d\0\0\x02\0\x10\0data\0\0\0\0")
    heard = " ".join("".join(HEARD).split())
    with serve_hearing() as (port, entry):
        called = ["generate", "--endpoint", f"127.0.0.1:{port}", "--audio", str(question)]
        shown = CliRunner().invoke(app, [*called, "--max-tokens", "7"])
        assert (shown.exit_code, shown.stdout, shown.stderr) == (0, f"{ANSWER}\n", f"heard: {heard}\n")
        assert [part.WhichOneof("part") for part in entry.starts[-1].chat.messages[0].parts] == ["audio"]
        assert dict(entry.starts[-1].sampling).keys() == {"llm"}, "--max-tokens is of the answer"
        shown = CliRunner().invoke(app, [*called, "--modality", "transcript"])
        assert (shown.exit_code, shown.stdout, shown.stderr) == (0, f"{''.join(HEARD).strip()}\n", "")
