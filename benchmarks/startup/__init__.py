"""Measures each part of a stage's start, from the launch of its process until it is ready.

The stages are those of a tiny Qwen2.5-Omni, started one at a time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness.charts import stacked_bars
from benchmarks.harness.interleave import quantile
from benchmarks.harness.report import Options, Report, Row
from benchmarks.startup.parts import Mark, cpu_seconds, split_start

ROUNDS = 3
START_LIMIT_S = 900.0
STAGES = ("thinker", "talker", "token2wav")
TOTALS, BY_PART = "start to ready", "seconds by part"
TRACER = Path(__file__).parent / "tracer"
SAMPLE = Path(__file__).parents[2] / "manifests" / "samples" / "tiny-omni-full.yaml"


def measure(options: Options) -> Report:
    """Start every stage several times, in turn. Returns the seconds until ready, in total and by part.

    A first start of the thinker fills the caches and is not counted.
    """
    from omni_cli.local.pipeline import compile_local
    from omni_proto.pipeline import load_pipeline

    starts: dict[str, list[tuple[dict[str, float], float]]] = {stage: [] for stage in STAGES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [
            sys.executable,
            "-m",
            "omni_cli",
            "tiny-model",
            str(folder / "model"),
            "--seed",
            "0",
            "--family",
            "qwen2_5_omni",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        configs = compile_local(load_pipeline(SAMPLE), str(folder / "model"), dict.fromkeys(STAGES, 0))
        for config in configs:
            (folder / f"{config.stage}.yaml").write_text(config.to_yaml())
        for number in range(-1, options.rounds or ROUNDS):
            for stage in STAGES[:1] if number < 0 else STAGES:
                parts, cpu = start_once(folder / f"{stage}.yaml", folder)
                if number >= 0:
                    starts[stage].append((parts, cpu))
    totals = [
        {
            "stage": stage,
            "ready_s_p50": round(statistics.median(sum(parts.values()) for parts, _ in ones), 1),
            "ready_s_max": round(quantile([sum(parts.values()) for parts, _ in ones], 1.0), 1),
            "cpu_s_p50": round(statistics.median(cpu for _, cpu in ones), 1),
        }
        for stage, ones in starts.items()
    ]
    by_part = [
        {
            "part": part,
            **{stage: round(statistics.median(parts[part] for parts, _ in ones), 2) for stage, ones in starts.items()},
        }
        for part in starts[STAGES[0]][0][0]
    ]
    return Report({TOTALS: totals, BY_PART: by_part}, [], NOTES)


NOTES = [
    "One stage server starts at a time. Its bytecode is compiled, its files are in the page cache, and its checkpoint "
    "has a few MB, so imports take most of the time. CPU seconds are those of the stage server and its engine's "
    "process up to their last mark.",
]


def start_once(config: Path, folder: Path) -> tuple[dict[str, float], float]:
    """Start a stage server, wait until it is ready, and stop it.

    Returns the seconds of each part, and the processor seconds of all parts together. Raises RuntimeError with the end
    of the log if the server does not become ready.
    """
    trace, address = folder / "trace.jsonl", folder / "address.json"
    for stale in (trace, address):
        stale.unlink(missing_ok=True)
    path = os.pathsep.join(filter(None, (str(TRACER), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "OMNI_BENCH_TRACE": str(trace)}
    command = [sys.executable, "-m", "omni_stage", "serve", "--config", str(config), "--address-file", str(address)]
    with (folder / "stage.log").open("wb") as log:
        launched = time.time()
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            while not address.exists():
                if process.poll() is not None or time.time() - launched > START_LIMIT_S:
                    raise RuntimeError((folder / "stage.log").read_text(errors="replace")[-4000:])
                time.sleep(0.005)
            ready = time.time()
        finally:
            process.terminate()
            process.wait(60)
    marks = [Mark(**json.loads(line)) for line in trace.read_text().splitlines()]
    return split_start(marks, launched, ready), cpu_seconds(marks)


def draw(result: Row, path: Path) -> None:
    """Draw a bar for each stage, divided into the parts of the start."""
    rows = result["tables"][BY_PART]
    bars = {stage: {row["part"]: row[stage] for row in rows} for stage in STAGES}
    stacked_bars(path, bars, title="Process start to ready", unit="s")
