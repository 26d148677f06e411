"""Measures what a turn of a long call costs in real stage servers around engines with an H200's times.

A turn is a text of as many tokens as its audio would have, and each token has a row of the published width.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.first_audio.turns import ARGUMENTS, SECONDS, TITLE, growth, hold_call, run
from benchmarks.harness.report import Options, Report, Row, load
from benchmarks.paced.goals import H200
from benchmarks.paced.serving import SAMPLE
from omni_proto.client.prompt import ChatMessage, user
from omni_proto.pipeline import load_pipeline
from omni_stage.models.sim.tables import BUILT_IN

__all__ = ["measure"]

CALLS = 5
SIDES: Mapping[str, Mapping[str, Any]] = {"cached": {"enable_prefix_caching": True}, "computed": {}}
ROW_VALUES = 2048
"""Values of the row that Qwen3-Omni's talker reads for each token of a medium."""
TOKENS = 13 * SECONDS
"""Tokens of a turn's audio."""


def measure(options: Options) -> Report:
    """Returns first audio by turn, the medians of several calls, and ratios of the last turn to the first."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        table = json.loads((BUILT_IN / H200 / "config.json").read_text(encoding="utf-8"))
        table["thinker"]["rowValues"] = ROW_VALUES
        (Path(folder) / "config.json").write_text(json.dumps(table), encoding="utf-8")
        for side, arguments in SIDES.items():
            rows += _run_side(side, arguments, Path(folder))
    ratios = [
        growth(rows, "first audio", side, ("first_audio_s",), 1.2 if side == "cached" else None) for side in SIDES
    ]
    return Report({TITLE: rows}, ratios, [f"Load after the run: {load()}. Medians of {CALLS} calls with other texts."])


def _run_side(side: str, arguments: Mapping[str, Any], table: Path) -> list[Row]:
    pipeline = load_pipeline(SAMPLE)
    settings = {"max_model_len": ARGUMENTS["max_model_len"], **arguments}
    pipeline.spec.stages[:2] = [
        stage.model_copy(update={"engine_args": stage.engine_args.model_copy(update=settings)})
        for stage in pipeline.spec.stages[:2]
    ]
    with run(pipeline, table) as local:
        calls = [asyncio.run(hold_call(side, local, [], partial(_say, call))) for call in range(CALLS)]
    names = [name for name in calls[0][0] if name != "side"]
    return [
        {"side": side, **{name: statistics.median(row[name] for row in same) for name in names}}
        for same in zip(*calls, strict=True)
    ]


def _say(call: int, turn: int) -> ChatMessage:
    """Returns a user's message of TOKENS tokens, as paced engines count them."""
    return user("".join(random.Random(100 * call + turn).choices("abcdefgh", k=4 * TOKENS)))
