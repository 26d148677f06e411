"""Measures what listeners hear at a request rate: requests arrive at random times, however many still run (open loop).

Paced engines keep an H200's times, code2wav takes frames as they come, and everything else is real. Each rate runs
twice with new servers: cold, the first requests after the start, and warm. Virtual time (ideal.py) gets the same
arrivals. The last two runs give code2wav every frame by itself.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.interleave import quantile
from benchmarks.harness.report import Options, Report, Row, load
from benchmarks.harness.verdict import Ratio
from benchmarks.paced.goals import H200, goal_rows
from benchmarks.paced.ideal import Outcome, longest_gap, run_ideal
from benchmarks.paced.serving import PROMPT, TEXT_TOKENS, Group, connect, send_at, serve
from omni_proto.stage_config import EdgeMode
from omni_stage.models.component import UserPrompt
from omni_stage.models.sim.content import prompt_ids
from omni_stage.models.sim.tables import BUILT_IN, read_table
from omni_stage.service.request.outputs import CHUNK_S

RATES = (1.0, 2.0, 4.0)
"""Requests a second."""
WINDOW_S = 15.0
"""Requests arrive during this time; then all of them run to their end."""
FRAMES = 250
GATHERED, SINGLE = "up to 8 frames", "single frames"
HEARD, VIRTUAL = "at a request rate", "first audio of one H200 in virtual time"
LEAST_SHARE = 0.99
"""Least share of streams without an audible gap."""
LEAST_AUDIO = 250
"""Least seconds of audio that a code2wav pod hands out for each second of a core: one event loop does it."""
DECODER, CARRIED = "decoder", "code2wav's audio s/core s"


def measure(options: Options) -> Report:
    """Returns what listeners hear at each rate, and the goals for a GPU in virtual time. `options.rounds` is unused."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        single = _write_single(Path(folder))
        for rate in RATES:
            rows += asyncio.run(_serve(BUILT_IN / H200, GATHERED, rate))
        rows += asyncio.run(_serve(single, SINGLE, RATES[-1]))
    virtual, ratios = goal_rows()
    notes = [
        f"Load after the run: {load()}. 20 s of speech a request; arrivals are a Poisson process with a fixed seed.",
        "C50 and C100: share of streams without a gap of more than 50 or 100 ms.",
    ]
    return Report({HEARD: rows, VIRTUAL: virtual}, [*judge_rates(rows), *ratios], notes)


def arrivals(rate: float, seconds: float = WINDOW_S, seed: int = 1) -> list[float]:
    """Returns the times of a Poisson process with `rate` events a second: at least one, all below `seconds`."""
    chance, times, now = random.Random(seed), [0.0], 0.0
    while (now := now + chance.expovariate(rate)) < seconds:
        times.append(now)
    return times


def continuity(outcomes: Sequence[Outcome], gap_s: float) -> float:
    """Returns the share of streams without a gap of more than `gap_s` seconds."""
    return sum(longest_gap(outcome.chunks) <= gap_s for outcome in outcomes) / len(outcomes)


def count_windows(outcomes: Sequence[Outcome]) -> int:
    """Returns how many windows code2wav ran for these streams.

    A stage sends a window of more than CHUNK_S seconds in several chunks, all but the last of that length, which no
    window of whole frames of 80 ms has.
    """
    return sum(chunk.seconds < CHUNK_S - 0.001 for outcome in outcomes for chunk in outcome.chunks)


def judge_rates(rows: Sequence[Row]) -> list[Ratio]:
    """Returns the share of streams without a gap at each rate, and how many requests of code2wav gathering saves."""
    warm = [row for row in rows if row["run"] == "warm"]
    gathered = [row for row in warm if row["code2wav"] == GATHERED]
    single = [row for row in warm if row["code2wav"] == SINGLE]
    ratios = [
        Ratio(f"C50 at {row['requests/s']:g} requests/s", row["C50"], at_least=LEAST_SHARE, goal=True, tolerance=0.5)
        for row in gathered
    ]
    saved = single[-1]["code2wav requests/audio s"] / gathered[-1]["code2wav requests/audio s"]
    later = gathered[-1]["first audio p50 ms"] / single[-1]["first audio p50 ms"]
    return [
        *ratios,
        Ratio(
            "code2wav pod, audio s for each core s",
            gathered[-1][CARRIED],
            at_least=LEAST_AUDIO,
            goal=True,
            tolerance=0.3,
        ),
        Ratio("code2wav requests, single frames x gathered", round(saved, 2), at_least=4.0, tolerance=0.3),
        Ratio("first audio, gathered x single frames", round(later, 3), at_most=1.1, goal=True, tolerance=0.5),
    ]


async def _serve(table: Path, name: str, rate: float) -> list[Row]:
    starts, rows = arrivals(rate), []
    with serve(table, EdgeMode.STREAM) as local:
        pipeline = connect(local)
        for run in ("cold", "warm"):
            group = await send_at(pipeline, starts, FRAMES)
            rows.append(_row(table, name, rate, run, group, starts))
            print(rows[-1], flush=True)
        await pipeline.client.close()
    return rows


def _row(table: Path, name: str, rate: float, run: str, group: Group, starts: Sequence[float]) -> Row:
    shape = read_table(table)
    prompt = len(prompt_ids(UserPrompt(text=PROMPT)))
    ideal = run_ideal(
        shape, streams=True, prompt_tokens=prompt, text_tokens=TEXT_TOKENS, frames=FRAMES, starts=list(starts)
    )
    first, best = ([outcome.first_audio * 1000 for outcome in outcomes] for outcomes in (group.outcomes, ideal))
    audio = len(starts) * FRAMES / shape.talker.frames_per_second
    return {
        "requests/s": rate,
        "code2wav": name,
        "run": run,
        "requests": len(starts),
        "first audio p50 ms": round(statistics.median(first), 1),
        "first audio p95 ms": round(quantile(first, 0.95), 1),
        "ideal p50 ms": round(statistics.median(best), 1),
        "ideal p95 ms": round(quantile(best, 0.95), 1),
        "C50": round(continuity(group.outcomes, 0.05), 4),
        "C100": round(continuity(group.outcomes, 0.1), 4),
        "ideal C50": round(continuity(ideal, 0.05), 4),
        "code2wav requests/audio s": round(count_windows(group.outcomes) / audio, 2),
        CARRIED: round(audio / group.cpu_s[DECODER], 1),
        "cores": round(group.cores, 2),
        **{process: round(seconds / group.wall_s, 2) for process, seconds in group.cpu_s.items()},
    }


def _write_single(folder: Path) -> Path:
    """Write the H200's table, with a code2wav that runs every frame by itself. Returns its directory."""
    table = json.loads((BUILT_IN / H200 / "config.json").read_text(encoding="utf-8"))
    table["decoder"]["mostFrames"] = 1
    (folder / "config.json").write_text(json.dumps(table), encoding="utf-8")
    return folder
