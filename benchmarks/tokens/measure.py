"""Measures the stage server's processor time per token, for text alone and for text with a row for the next stage."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.interleave import median_ratio, quantile, take_turns
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.tokens.paced import EARLY_ROWS, STEP_S
from benchmarks.tokens.processes import Callers, Server, serve, serve_bare, start_callers

BARE, BARE_ROWS, TEXT, TEXT_AND_ROWS = "bare grpc.aio", "bare grpc.aio with rows", "text", "text and rows"
REAL_TEXT = "vLLM, text"
PACED, REAL = "scripted engines, 100 steps a second", "vLLM's output path, tiny thinker"
AT_ONCE = (1, 8, 64)
TOKENS = 500
SPREAD_S = 1.0
"""Seconds over which the starts of a run's requests are spread."""
LEAD_S = 1.5
"""Seconds from a run's beginning until processor time is counted. By then all requests are running."""
ROUNDS = 3
REAL_AT_ONCE, REAL_TOKENS = 64, 150
TEXT_GOAL_US, ROWS_GOAL_US, REAL_GOAL_US = 40, 80, 120
LATE_GOALS = (
    ("text", "text_late_ms_p99", 5),
    ("first rows", "early_row_late_ms_p99", 5),
    ("later rows", "later_row_late_ms_p99", 40),
)
TOLERANCE = 0.3
MACHINE_TOLERANCE = 2.0
LATE_TOLERANCE = 2.0
"""It is large, because a single interruption by another process multiplies a p99."""
_MODULE = "benchmarks.tokens"
_STAGE = {
    "component": "bench/tokens",
    "model": {"path": "/model"},
    "outputs": ["Text"],
    "limits": {"maxConcurrentRequests": 128, "maxInflightBytes": 8 << 30},
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side."""

    cpu_us: float
    """Processor time of the sending server per token, in microseconds."""
    text_us: Sequence[int] = ()
    early_us: Sequence[int] = ()
    later_us: Sequence[int] = ()


Samples = dict[tuple[str, int], list[Sample]]


def measure(options: Options) -> Report:
    """Measure all sides at 1, 8 and 64 requests, then a real engine. Returns the figures."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rounds = options.rounds or ROUNDS
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        callers = stack.enter_context(start_callers(f"{_MODULE}.caller"))
        with paced_servers(Path(folder)) as servers:
            paced = run_paced(servers, callers, rounds)
        real = run_real(Path(folder), callers, rounds)
    tables = {PACED: paced_rows(paced), REAL: real_rows(real)}
    return Report(tables, find_ratios(paced, real), NOTES)


NOTES = [
    "cpu_us: processor time per token of the sending server's process, with all its threads. It is the best round, "
    "because other load only adds to it. A real stage's engine is a separate process and is not included.",
    "Every request gets a token every 10 ms, all in one turn of the event loop, like a batch of vLLM. Over a Stream "
    "edge, a row of 3,584 bfloat16 and its token id go to a talker in another process.",
    "The figures include the script's own cost: 6 us per text, and 11 us per text with a row.",
    "bare grpc.aio: a server without our code. It writes one message per token, encoded once per step for all "
    "requests. With rows, it also writes the rows of four steps as one message to a process that drops them.",
    "Late: the time from the moment when a step was due until its text is decoded in the callers' process, or until "
    f"its row has reached the talker's engine. Early rows are the first {EARLY_ROWS} of each request. All processes "
    "share two cores.",
]


@contextmanager
def paced_servers(folder: Path) -> Iterator[dict[str, Server]]:
    """Yields a running server for each side."""
    module = f"{_MODULE}.stage"
    with ExitStack() as stack:
        talker = {**_STAGE, "stage": "talker", "input": {"source": "thinker", "mode": "Stream"}}
        below = stack.enter_context(serve(folder, module, talker))
        sink = stack.enter_context(serve_bare(module, "sink"))
        edge = {
            "stage": "talker",
            "target": f"127.0.0.1:{below.port}",
            "component": "bench/tokens",
            "stages": ["talker"],
            "outputs": ["Text"],
            "mode": "Stream",
        }
        yield {
            BARE: stack.enter_context(serve_bare(module, "bare")),
            BARE_ROWS: stack.enter_context(serve_bare(module, "bare", str(sink.port))),
            TEXT: stack.enter_context(serve(folder, module, {**_STAGE, "stage": "thinker"})),
            TEXT_AND_ROWS: stack.enter_context(
                serve(folder, module, {**_STAGE, "stage": "thinker", "downstream": [edge]})
            ),
        }


def run_paced(servers: dict[str, Server], callers: Callers, rounds: int) -> Samples:
    """Runs the sides in turn. Returns the samples of each side and number of concurrent requests."""
    samples: Samples = defaultdict(list)
    for server in servers.values():
        callers.start(port=server.port, count=4, tokens=20, spread_s=0.1)
        callers.finish()
    for number in range(rounds):
        for count in AT_ONCE:
            for name in take_turns(list(servers), number):
                samples[name, count].append(run_once(servers[name], callers, count))
    return samples


def run_once(server: Server, callers: Callers, count: int) -> Sample:
    """Send `count` requests of TOKENS tokens. Returns the sample. Processor time counts while all of them run."""
    callers.start(port=server.port, count=count, tokens=TOKENS, spread_s=SPREAD_S)
    time.sleep(LEAD_S)
    began, cpu_began = time.monotonic(), server.cpu_s()
    time.sleep(TOKENS * STEP_S - LEAD_S)
    ended, cpu_ended = time.monotonic(), server.cpu_s()
    brought = callers.finish()
    tokens = sum(began <= arrived / 1e6 < ended for arrived in brought["arrived_us"])
    return Sample(
        cpu_us=(cpu_ended - cpu_began) / max(1, tokens) * 1e6,
        text_us=brought["late_us"],
        early_us=[late for rows in brought["rows_late_us"] for late in rows[:EARLY_ROWS]],
        later_us=[late for rows in brought["rows_late_us"] for late in rows[EARLY_ROWS:]],
    )


def run_real(folder: Path, callers: Callers, rounds: int) -> Samples:
    """Returns the samples of the tiny Qwen2.5-Omni's thinker in a stage server, which sends only text.

    Processor time counts for whole requests, including their start.
    """
    # Imported here, because it imports torch.
    from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

    checkpoint = write_tiny_checkpoint(folder / "model", dtype="float32")
    engine = {"maxModelLen": 512, "maxNumSeqs": REAL_AT_ONCE, "dtype": "float32", "enforceEager": True}
    thinker: dict[str, Any] = {
        "stage": "thinker",
        "component": "qwen2_5_omni/thinker",
        "model": {"path": str(checkpoint)},
        "outputs": ["Text"],
        "limits": {"maxConcurrentRequests": 128},
        "engineArgs": {**engine, "kvCacheMemoryMib": 256},
    }
    samples: Samples = defaultdict(list)
    with serve(folder, "", thinker) as server:
        for _ in range(rounds + 1):
            began = server.cpu_s()
            callers.start(port=server.port, count=REAL_AT_ONCE, tokens=REAL_TOKENS, spread_s=0.1)
            callers.finish()
            spent = server.cpu_s() - began
            samples[REAL_TEXT, REAL_AT_ONCE].append(Sample(spent / (REAL_AT_ONCE * REAL_TOKENS) * 1e6))
    return samples


def paced_rows(samples: Samples) -> list[Row]:
    """Returns a row for each side and number of concurrent requests. Lateness is in ms, over all rounds."""
    late = [
        _late("text", [one.text_us for one in ones])
        | _late("early_row", [one.early_us for one in ones])
        | _late("later_row", [one.later_us for one in ones])
        for ones in samples.values()
    ]
    rows = [one | more for one, more in zip(real_rows(samples), late, strict=True)]
    return sorted(rows, key=lambda row: row["at_once"])


def real_rows(samples: Samples) -> list[Row]:
    """Returns a row for each side."""
    return [
        {
            "side": name,
            "at_once": count,
            "cpu_us": round(_best(ones), 1),
            "cpu_us_median": round(statistics.median(one.cpu_us for one in ones), 1),
        }
        for (name, count), ones in samples.items()
    ]


def find_ratios(paced: Samples, real: Samples) -> list[Ratio]:
    """Returns ratios to bare gRPC in the same rounds, and times in microseconds and milliseconds.

    The times have only goals, because they depend on the machine.
    """
    most = max(AT_ONCE)
    ratios = [
        Ratio(
            f"{name}, {most} at once, x {bare}",
            round(
                median_ratio([one.cpu_us for one in paced[name, most]], [one.cpu_us for one in paced[bare, most]]), 2
            ),
            at_most=bound,
            # Only a goal for text and rows, because this bare server writes no rows. On idle cores its texts cost half
            # of what they cost on busy cores, but our copies of rows cost the same, so the ratio rises.
            goal=(name, bare) == (TEXT_AND_ROWS, BARE),
            tolerance=TOLERANCE,
        )
        for name, bare, bound in ((TEXT, BARE, 1.8), (TEXT_AND_ROWS, BARE_ROWS, 2.5), (TEXT_AND_ROWS, BARE, 3.5))
    ]
    budgets = [
        (f"{TEXT}, {most} at once, us", _best(paced[TEXT, most]), TEXT_GOAL_US),
        (f"{TEXT_AND_ROWS}, {most} at once, us", _best(paced[TEXT_AND_ROWS, most]), ROWS_GOAL_US),
        (f"{REAL_TEXT}, {REAL_AT_ONCE} at once, us", _best(real[REAL_TEXT, REAL_AT_ONCE]), REAL_GOAL_US),
    ]
    busy = paced_rows({(TEXT_AND_ROWS, most): paced[TEXT_AND_ROWS, most]})[0]
    late = [
        (f"{TEXT_AND_ROWS}, {most} at once, {what} late, p99 ms", busy[key], goal) for what, key, goal in LATE_GOALS
    ]
    return [
        *ratios,
        # Microseconds depend on the machine: the same code differed by half between two idle machines.
        *(
            Ratio(name, round(value, 1), at_most=goal, goal=True, tolerance=MACHINE_TOLERANCE)
            for name, value, goal in budgets
        ),
        *(Ratio(name, value, at_most=goal, goal=True, tolerance=LATE_TOLERANCE) for name, value, goal in late),
    ]


def _best(samples: Sequence[Sample]) -> float:
    return min(sample.cpu_us for sample in samples)


def _late(what: str, runs: Sequence[Sequence[int]]) -> Row:
    late = [value for run in runs for value in run]
    return {
        f"{what}_late_ms_{name}": round(quantile(late, share) / 1e3, 1) if late else None
        for name, share in (("p50", 0.5), ("p99", 0.99))
    }
