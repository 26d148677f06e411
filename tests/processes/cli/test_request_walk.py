"""docs/architecture.md says how many source files of the first stage a request enters at most. They are counted."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from rich.console import Console

from omni_cli.commands.run import find_models
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import OmniClient
from omni_proto.pipeline import load_pipeline

ROOT = Path(__file__).parents[3]
RECORDER = ROOT / "tests" / "support" / "stages" / "recorded_server.py"
PAGE = ROOT / "docs" / "architecture.md"
PROMPT = "Say in sixteen words what a request costs, from its first byte to the last sample."
LENGTHS = {"thinker": {"max_tokens": 8, "ignore_eos": True}, "talker": {"max_tokens": 50, "ignore_eos": True}}


def test_a_spoken_reply_enters_no_more_files_than_the_page_says(tmp_path: Path) -> None:
    pipeline = load_pipeline(ROOT / "manifests" / "samples" / "sim-omni.yaml")
    models = find_models(pipeline)
    command = (sys.executable, str(RECORDER), str(tmp_path), "serve")
    with LocalPipeline(pipeline, LocalOptions(model_path=models, stage_command=command)) as local:
        with make_progress(Console(quiet=True), ["thinker", "talker", "decoder"]) as progress:
            local.start(progress)
        with OmniClient(local.endpoint) as client:
            assert client.run(text=PROMPT, sampling=LENGTHS).audio
    files = json.loads((tmp_path / "thinker.json").read_text())
    stated = re.search(r"enters at most (\d+) files of our packages", PAGE.read_text())
    assert stated
    assert 30 < len(files) <= int(stated[1]), "\n".join(files)
