"""Measures time to first audio with simulated GPU timing (docs/load-tests.md).

Each engine step takes the time that a table gives for a real GPU. Stream edges are compared with Full edges, and with
the ideal: the best time that the table allows, computed in virtual time with servers and edges that cost nothing
(ideal.py).

Requests are sent together, each for 150 tokens of text and 20 s of speech. The first round with each number of requests
is cold and counts apart. Client and stage servers share this machine.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness.report import Options, Report, Row, load
from benchmarks.harness.verdict import Ratio
from benchmarks.paced.ideal import Outcome, gaps, run_ideal
from benchmarks.paced.serving import PROMPT, SPEECH_S, TEXT_TOKENS, Group, connect, send, serve
from omni_proto.stage_config import EdgeMode
from omni_stage.models.component import UserPrompt
from omni_stage.models.sim.content import prompt_ids
from omni_stage.models.sim.tables import BUILT_IN, Table, read_table

ANCHOR = "qwen3-omni-30b-a3b-h100"
"""The GPU table of the model for which vllm-omni has published such ratios (see RATIOS)."""
TABLES = (ANCHOR, "qwen2.5-omni-7b-h100")
ROUNDS = {1: 5, 4: 3, 10: 2}
MANY = 64
CAPACITY = (16, 24, 32, 40, 48)
"""Further numbers of concurrent requests, with the anchor's table only. They show how many
requests two cores can serve."""
BUSY_CORES = 1.6
"""Number of busy cores at which two cores are 20 % idle."""
AUDIBLE_S = 0.02
RATIOS = {1: 0.08, 4: 0.10, 10: 0.11}
"""Concurrent requests -> upper bound of first audio with Stream, relative to Full. vllm-omni on an H800 has 0.08, 0.11
and 0.12."""
MOST_OVER = 1.1
"""Upper bound of first audio relative to the ideal, while the servers keep up."""
TABLE, BUSY, CARRIED = "first audio", "processor time", "what two cores carry"


@dataclass(frozen=True, slots=True)
class Taken:
    """What was measured with one number of concurrent requests."""

    cold: Group
    """The first round with this number."""
    warm: list[Group]


def measure(options: Options) -> Report:
    """Returns first audio for each table, mode and number of concurrent requests, and what that costs two cores."""
    rows: list[Row] = []
    busy: list[Row] = []
    ratios: list[Ratio] = []
    for name in TABLES:
        table = read_table(BUILT_IN / name)
        streams, whole = (_run(name, table, mode, options.rounds) for mode in (EdgeMode.STREAM, EdgeMode.FULL))
        for mode, groups in ((EdgeMode.STREAM, streams), (EdgeMode.FULL, whole)):
            for count, taken in groups.items():
                ideal = _ideal(table, mode, count)
                rows.append(_row(name, mode, count, taken, ideal))
                busy.append(_busy_row(name, mode, count, taken, ideal))
        ratios += _judge(name, table, streams, whole)
    notes = [f"Load after the run: {load()}. First audio is later if the machine does other work."]
    carried = carried_rows([row for row in rows if row["mode"] == EdgeMode.STREAM.value], busy)
    return Report({TABLE: rows, BUSY: busy, CARRIED: carried}, ratios, notes)


def carried_rows(streams: Sequence[Row], busy: Sequence[Row]) -> list[Row]:
    """Returns how many concurrent requests two cores can serve, and which figure is then furthest from its ideal.

    The table has three rows, all for ANCHOR: the highest number measured, the highest that leaves two cores 20 % idle,
    and the highest that also keeps first audio within 10 % of the ideal.
    """
    cores = {row["at once"]: row for row in busy if (row["table"], row["mode"]) == (ANCHOR, EdgeMode.STREAM.value)}
    heard = {row["at once"]: row for row in streams if row["table"] == ANCHOR}
    idle = [count for count in sorted(heard) if cores[count]["cores"] <= BUSY_CORES]
    on_time = [count for count in idle if _over(heard[count]) <= MOST_OVER]
    found: list[Row] = []
    for what, counts in (
        ("the most measured", sorted(heard)),
        ("two cores 20 % idle", idle),
        ("20 % idle and first audio within 10 % of the ideal", on_time),
    ):
        count = max(counts, default=0)
        row: Row = {"what": what, "at once": count}
        if count:
            lateness = {
                "first audio x ideal": _over(heard[count]),
                "text x ideal": cores[count]["text done ms"] / cores[count]["ideal text ms"],
                "whole answer x ideal": heard[count]["RTF"] / heard[count]["ideal RTF"],
            }
            row |= {"cores": cores[count]["cores"]} | {name: round(value, 2) for name, value in lateness.items()}
            row["latest"] = max(lateness, key=lambda name: lateness[name]).removesuffix(" x ideal")
        found.append(row)
    return found


def _over(row: Row) -> float:
    return float(row["first audio ms"] / row["ideal ms"])


def _run(name: str, table: Table, mode: EdgeMode, rounds: int | None) -> dict[int, Taken]:
    counts = {count: rounds or most for count, most in ROUNDS.items()}
    if mode is EdgeMode.STREAM and name == ANCHOR:
        counts |= dict.fromkeys(CAPACITY, 1)
    if mode is EdgeMode.FULL:
        counts = dict.fromkeys(counts, 1)
    return asyncio.run(_serve_all(name, table, mode, {**counts, MANY: 1}))


async def _serve_all(name: str, table: Table, mode: EdgeMode, counts: dict[int, int]) -> dict[int, Taken]:
    frames = _frames(table)
    with serve(BUILT_IN / name, mode) as local:
        pipeline = connect(local)
        await send(pipeline, 2, max(1, frames // 20))
        taken: dict[int, Taken] = {}
        for count, rounds in counts.items():
            # Garbage is collected here, so that the client's own pauses do not count as the servers' delay.
            gc.collect()
            gc.freeze()
            cold, *warm = [await send(pipeline, count, frames) for _ in range(rounds + 1)]
            taken[count] = Taken(cold, warm)
            print(f"{name} {mode} {count}: {_first(warm) * 1000:.0f} ms", flush=True)
        await pipeline.client.close()
    return taken


def _ideal(table: Table, mode: EdgeMode, count: int) -> list[Outcome]:
    prompt = len(prompt_ids(UserPrompt(text=PROMPT)))
    return run_ideal(
        table,
        streams=mode is EdgeMode.STREAM,
        prompt_tokens=prompt,
        text_tokens=TEXT_TOKENS,
        frames=_frames(table),
        starts=[0.0] * count,
    )


def _frames(table: Table) -> int:
    return round(SPEECH_S * table.talker.frames_per_second)


def _first(groups: Sequence[Group]) -> float:
    return statistics.median(outcome.first_audio for group in groups for outcome in group.outcomes)


def _median_first(outcomes: Sequence[Outcome]) -> float:
    return statistics.median(outcome.first_audio for outcome in outcomes)


def _silence(outcomes: Sequence[Outcome]) -> tuple[int, float]:
    """Returns how many listeners hear a silence, and the total seconds of their silences."""
    heard = [[length for _, length in gaps(outcome.chunks) if length > AUDIBLE_S] for outcome in outcomes]
    return sum(bool(lengths) for lengths in heard), sum(sum(lengths) for lengths in heard)


def _row(name: str, mode: EdgeMode, count: int, taken: Taken, ideal: Sequence[Outcome]) -> Row:
    groups = taken.warm
    outcomes = [outcome for group in groups for outcome in group.outcomes]
    silent, seconds = _silence(outcomes)
    ideal_silent, ideal_seconds = _silence(ideal)
    first, best = _first(groups), _median_first(ideal)
    return {
        "table": name,
        "mode": mode.value,
        "at once": count,
        "first audio ms": round(first * 1000, 1),
        "cold ms": round(_first([taken.cold]) * 1000, 1),
        "best ms": round(min(outcome.first_audio for outcome in outcomes) * 1000, 1),
        "ideal ms": round(best * 1000, 1),
        "over ms": round((first - best) * 1000, 1),
        "last ms": round(max(outcome.first_audio for outcome in outcomes) * 1000, 1),
        "RTF": round(statistics.median(outcome.done for outcome in outcomes) / SPEECH_S, 3),
        "ideal RTF": round(statistics.median(outcome.done for outcome in ideal) / SPEECH_S, 3),
        "with gaps": f"{silent}/{len(outcomes)}",
        "ideal gaps": f"{ideal_silent}/{len(ideal)}",
        "silence s": round(seconds / len(groups), 2),
        "ideal silence s": round(ideal_seconds, 2),
    }


def _busy_row(name: str, mode: EdgeMode, count: int, taken: Taken, ideal: Sequence[Outcome]) -> Row:
    groups = taken.warm
    wall = sum(group.wall_s for group in groups)
    shares = {process: sum(group.cpu_s[process] for group in groups) / wall for process in groups[0].cpu_s}
    text = statistics.median(outcome.last_text for group in groups for outcome in group.outcomes)
    return {
        "table": name,
        "mode": mode.value,
        "at once": count,
        "cores": round(sum(shares.values()), 2),
        **{process: round(share, 2) for process, share in shares.items()},
        "text done ms": round(text * 1000),
        "ideal text ms": round(statistics.median(outcome.last_text for outcome in ideal) * 1000),
    }


def _judge(name: str, table: Table, all_streams: dict[int, Taken], all_whole: dict[int, Taken]) -> list[Ratio]:
    streams, whole = ({count: taken.warm for count, taken in each.items()} for each in (all_streams, all_whole))
    found = [
        Ratio(
            f"{name}, {count} at once, Stream x Full",
            round(_first(streams[count]) / _first(whole[count]), 3),
            at_most=most,
            tolerance=0.5,
        )
        for count, most in RATIOS.items()
    ]
    at_four = _first(streams[4]) / _first(streams[1])
    found.append(Ratio(f"{name}, first audio at 4 x at 1", round(at_four, 2), at_most=1.4, goal=True, tolerance=0.5))
    over = (_first(streams[1]) - _median_first(_ideal(table, EdgeMode.STREAM, 1))) * 1000
    found.append(Ratio(f"{name}, 1 at once, ms over the ideal", round(over, 1), at_most=10, goal=True, tolerance=5))
    carried = [
        count for count, groups in streams.items() if statistics.median(group.cores for group in groups) <= BUSY_CORES
    ]
    if carried:
        most = max(carried)
        best = _median_first(_ideal(table, EdgeMode.STREAM, most))
        share = _first(streams[most]) / best
        found.append(
            Ratio(f"{name}, {most} at once, x the ideal", round(share, 2), at_most=MOST_OVER, goal=True, tolerance=1.0)
        )
    return found
