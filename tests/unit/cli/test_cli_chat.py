"""`omnipipe chat` and `omnipipe bench` against a served entry; the arithmetic of bench."""

from __future__ import annotations

import json
import math
import tempfile
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from omni_cli.commands.bench import Outcome, list_starts, measure_silence, percentile, summarize
from omni_cli.commands.chat import run_chat
from omni_cli.main import app
from support.peers.answering_entry import PCM, WORDS, Starts, serve_entry
from support.processes.polling import wait_until

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


RECORDER = """#!/bin/sh
# As arecord: a header at once, samples until SIGTERM, the file's name last.
for last; do :; done
trap 'cat "{wav}" > "$last"; exit 1' TERM
echo started > "{started}"
while :; do sleep 0.05; done
"""


def test_a_chat_records_from_the_microphone(entry: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint, starts = entry
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    started = tmp_path / "started"
    with wave.open(str(tmp_path / "said.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(3200))
    script = tmp_path / "arecord"
    script.write_text(RECORDER.format(wav=tmp_path / "said.wav", started=started))
    script.chmod(0o755)

    def lines() -> Iterator[str]:
        yield "/record"
        wait_until(started.exists)
        yield ""
        yield "And in short?"
        yield "/record"  # and the lines end

    assert run_chat(endpoint, lines(), arguments={}, recorder=(str(script), "--quiet")) == 0
    parts = [[part.WhichOneof("part") for part in start.chat.messages[-1].parts] for start in starts]
    assert parts == [["audio"], ["text"]]
    assert not list(tmp_path.glob("omnipipe-*"))


@pytest.mark.parametrize(("recorder", "words"), [(None, "no recorder is installed"), (("false",), "recorded nothing")])
def test_a_recording_that_fails_ends_nothing(
    entry: Served, recorder: tuple[str, ...] | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint, starts = entry
    assert run_chat(endpoint, ["/record", "", "Hello?"], arguments={}, recorder=recorder) == 0
    assert words in capsys.readouterr().err
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


def test_bench_writes_a_run_as_aiperf_does_and_draws_it(entry: Served, tmp_path: Path) -> None:
    endpoint, _ = entry
    options = ("--requests", "4", "--aiperf", str(tmp_path / "run"), "--plot", str(tmp_path / "run.png"))
    code, _, err = run_command("bench", "--endpoint", endpoint, *options)
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "run/profile_export.jsonl").read_text().splitlines()]
    assert [one["metadata"]["session_num"] for one in records] == [0, 1, 2, 3]
    assert all(one["error"] is None for one in records)
    whole = json.loads((tmp_path / "run/profile_export_aiperf.json").read_text())
    for name in ("request_latency", "time_to_first_token", "time_to_first_audio"):
        values = [one["metrics"][name]["value"] for one in records]
        assert (whole[name]["min"], whole[name]["max"]) == (min(values), max(values))
        assert whole[name]["avg"] == pytest.approx(sum(values) / 4)
    assert whole["audio_duration"]["avg"] == pytest.approx(len(PCM) / 2 / 24_000)
    with Image.open(tmp_path / "run.png") as picture:
        assert picture.width > picture.height > 100


def test_bench_writes_failures_too(entry: Served, tmp_path: Path) -> None:
    options = ("--requests", "2", "--voice", "Nobody", "--aiperf", str(tmp_path), "--plot", str(tmp_path / "run.svg"))
    assert run_command("bench", "--endpoint", entry[0], *options)[0] == 1
    records = [json.loads(line) for line in (tmp_path / "profile_export.jsonl").read_text().splitlines()]
    assert [(one["metrics"], one["error"]["type"]) for one in records] == [({}, "INVALID_ARGUMENT")] * 2
    whole = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert whole["error_request_count"]["avg"] == 2
    assert "failed" in (tmp_path / "run.svg").read_text()


def test_bench_refuses_a_picture_before_it_sends_anything(entry: Served) -> None:
    code, _, err = run_command("bench", "--endpoint", entry[0], "--plot", "run.gif")
    assert (code, len(entry[1])) == (1, 0)
    assert ".png, .svg or .pdf" in err


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
