"""`omnipipe chat` and `omnipipe bench` against a served entry; the arithmetic of bench."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from omni_cli.commands.bench import Outcome, list_starts, measure_silence, percentile, summarize
from omni_cli.main import app
from support.peers.answering_entry import PCM, WORDS, Starts, serve_entry

ANSWER = "".join(WORDS)
Served = tuple[str, Starts]


@pytest.fixture
def entry() -> Iterator[Served]:
    with serve_entry() as (port, starts):
        yield f"127.0.0.1:{port}", starts


def run_command(*arguments: str, lines: str = "") -> tuple[int, str, str]:
    done = CliRunner().invoke(app, list(arguments), input=lines)
    return done.exit_code, done.stdout, done.stderr


def test_a_chat_remembers_what_was_said_and_sends_files(entry: Served, tmp_path: Path) -> None:
    endpoint, starts = entry
    Image.new("RGB", (4, 4)).save(tmp_path / "cat.png")
    lines = [
        "Good morning.",
        f"/image {tmp_path}/cat.png",
        "What is this?",
        f"/save {tmp_path}/a.wav",
        "/clear",
        "Hello?",
        "/quit",
        "never sent",
    ]
    code, out, err = run_command(
        "chat", "--endpoint", endpoint, "--no-play", "--system", "Be brief.", lines="\n".join(lines)
    )
    assert (code, out) == (0, f"{ANSWER}\n" * 3), err
    roles = [[message.role for message in start.chat.messages] for start in starts]
    assert [len(one) for one in roles] == [2, 4, 2]
    assert [part.WhichOneof("part") for part in starts[1].chat.messages[-1].parts] == ["image", "text"]
    assert (tmp_path / "a.wav").stat().st_size == len(PCM) + 44


def test_a_chat_survives_what_fails(entry: Served, tmp_path: Path) -> None:
    endpoint, starts = entry
    lines = f"/image {tmp_path}/none.png\n/dance\n/save x.wav\nHi\n"
    code, out, err = run_command("chat", "--endpoint", endpoint, "--no-play", "--voice", "Nobody", lines=lines)
    assert (code, out) == (0, "")
    for words in ("none.png: No such file", "/dance is no command", "no answer with audio", "error: "):
        assert words in err
    assert len(starts) == 1


def test_bench_counts_and_writes_what_each_request_saw(entry: Served, tmp_path: Path) -> None:
    endpoint, starts = entry
    file = tmp_path / "requests.jsonl"
    command = ("bench", "--endpoint", endpoint, "--requests", "6", "--concurrency", "3", "--json", str(file))
    code, out, err = run_command(*command, "-o", "json")
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["requests"], summary["errors"], len(starts)) == (6, {}, 6)
    assert summary["first_audio_s"]["p50"] <= summary["first_audio_s"]["p99"]
    outcomes = [json.loads(line) for line in file.read_text().splitlines()]
    assert [one["audio_s"] for one in outcomes] == [pytest.approx(len(PCM) / 2 / 24_000)] * 6
    assert "whole answer" in run_command("bench", "--endpoint", endpoint, "--requests", "1")[1]


def test_bench_reports_failures(entry: Served) -> None:
    code, out, _ = run_command("bench", "--endpoint", entry[0], "--requests", "2", "--voice", "Nobody")
    assert code == 1
    assert "errors: 2 INVALID_ARGUMENT" in out


@pytest.mark.parametrize(
    ("chunks", "silence"),
    [
        ([], 0.0),
        ([(1.0, 0.5)], 0.0),
        ([(1.0, 0.5), (1.5, 0.5)], 0.0),
        ([(1.0, 0.5), (1.8, 0.5)], 0.3),
        ([(1.0, 2.0), (1.1, 2.0), (5.5, 1.0)], 0.5),
        ([(1.0, 0.1), (2.0, 0.1), (3.0, 0.1)], 1.8),
    ],
)
def test_silence(chunks: list[tuple[float, float]], silence: float) -> None:
    assert measure_silence(chunks) == pytest.approx(silence)


def test_requests_are_due_at_the_rate() -> None:
    starts = list_starts(4000, 2.0, seed=0)
    assert starts == sorted(starts)
    assert starts[0] == 0.0
    assert starts[-1] == pytest.approx(2000, rel=0.1)
    assert list_starts(3, math.inf, seed=0) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("share", "value"), [(1, 1), (50, 2), (75, 3), (76, 4), (99, 4)])
def test_percentiles_are_values_that_occurred(share: int, value: int) -> None:
    assert percentile([4, 2, 1, 3], share) == value


def test_a_summary_leaves_failures_out_of_the_times() -> None:
    good = Outcome(0.0, 2.0, 0.5, 1.0, audio_s=4.0)
    summary = summarize([good, Outcome(1.0, 9.0, error="UNAVAILABLE")])
    assert summary["errors"] == {"UNAVAILABLE": 1}
    assert summary["total_s"]["mean"] == 2.0
    assert summary["real_time_factor"]["p50"] == 0.5
    assert summary["uninterrupted"] == 1.0
    assert summarize([Outcome(0.0, 1.0, error="INTERNAL")])["uninterrupted"] is None
