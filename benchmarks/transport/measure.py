"""Compares ways to send tensors between processes over loopback: our stream with its codec, raw TCP, and others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.interleave import median_ratio, quantile, take_turns
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.transport.payload import BULK, SIZES, Size
from benchmarks.transport.peer import FLIGHT, FLIGHT_WHOLE, OMNI, SIDES, TCP

ROUNDS = 15
ROUND_TRIPS = 150
"""Round trips in a round."""
STREAMED, LATENCY = "streams of tensors", "round trip of one row"
FLOORS = {"1 MB": 0.4, "8 MB": 0.5, "32 MB": 0.5}
"""Lower bounds of our stream's speed relative to raw TCP, by size."""
FLIGHT_GOAL = 1.0
"""Goal for our stream's speed relative to Arrow Flight. It is missed; docs/performance says why."""
TOLERANCE = 0.3
"""It is large, because each side's two processes share two cores and single runs differ by a fifth."""


@dataclass(slots=True)
class Sample:
    """One round of one side and size."""

    gb_per_s: float
    cpu_s_per_gb: float


@dataclass(slots=True)
class Peers:
    """A side's two processes, and its samples."""

    server: subprocess.Popen[str]
    sender: subprocess.Popen[str]
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    alone: list[float] = field(default_factory=list)
    behind_bulk: list[float] = field(default_factory=list)

    def transfer(self, size: Size) -> Sample:
        """Send size.transfers tensors, one after another. Returns the speed, and both processes' processor time."""
        before = ask(self.server, {})
        done = ask(self.sender, {"do": "transfers", "rows": size.rows, "count": size.transfers})
        cpu = ask(self.server, {}) - before + done["cpu"]
        return Sample(size.bytes / done["seconds"][0] / 1e9, cpu / (size.bytes * size.transfers / 1e9))

    def round_trips(self, bulk: bool) -> list[float]:
        """Returns the seconds of each row's round trip."""
        rows = BULK.rows if bulk else 1
        done = ask(self.sender, {"do": "round_trips", "rows": rows, "count": ROUND_TRIPS})
        return list(done["seconds"])


def measure(options: Options) -> Report:
    """Measure throughput, CPU time and latency of every side. Returns the tables."""
    rounds = options.rounds or ROUNDS
    with ExitStack() as stack:
        peers = {name: stack.enter_context(start_side(name)) for name in SIDES}
        for number in range(rounds + 1):
            for size in SIZES:
                for side in take_turns(list(peers.values()), number):
                    sample = side.transfer(size)
                    if number:  # the first round warms up connections and memory pools
                        side.samples.setdefault(size.name, []).append(sample)
            for side in take_turns(list(peers.values()), number):
                side.alone += side.round_trips(bulk=False) if number else []
                side.behind_bulk += side.round_trips(bulk=True) if number else []
    tables = {STREAMED: streamed_rows(peers), LATENCY: latency_rows(peers)}
    return Report(tables, find_ratios(peers), NOTES)


NOTES = [
    "GB/s: tensors are sent one after another on one stream until the last is verified. The table has the median of "
    "the rounds, and the best round, which shows a side's speed when nothing else uses the cores.",
    "ratio_to_tcp is the median of the rounds' ratios. CPU seconds are those of both processes.",
    "Every side ends with one contiguous, verified tensor. Ours also checks for NaN and infinity, and its buffer is "
    "writable. All but the protobuf message run with the stage server's malloc settings.",
    "Behind bulk: 32 MB tensors are sent at the same time, on the same connection if the side can do that.",
]


def streamed_rows(peers: Mapping[str, Peers]) -> list[Row]:
    """Returns a row for each size and side."""
    return [
        {
            "size": size.name,
            "side": name,
            "gb_per_s": round(statistics.median(_speeds(side, size.name)), 3),
            "gb_per_s_best": round(max(_speeds(side, size.name)), 3),
            "ratio_to_tcp": round(median_ratio(_speeds(side, size.name), _speeds(peers[TCP], size.name)), 3),
            "cpu_s_per_gb": round(statistics.median(sample.cpu_s_per_gb for sample in side.samples[size.name]), 2),
        }
        for size in SIZES
        for name, side in peers.items()
    ]


def latency_rows(peers: Mapping[str, Peers]) -> list[Row]:
    """Returns a row for each side, in microseconds."""
    return [
        {
            "side": name,
            "p50_us": _us(side.alone, 0.5),
            "p99_us": _us(side.alone, 0.99),
            "p50_us_behind_bulk": _us(side.behind_bulk, 0.5),
            "p99_us_behind_bulk": _us(side.behind_bulk, 0.99),
            "same_connection": SIDES[name].shares_connection,
        }
        for name, side in peers.items()
    ]


def find_ratios(peers: Mapping[str, Peers]) -> list[Ratio]:
    """Returns our stream's speed relative to raw TCP and to Arrow Flight."""

    def ratio(other: str, size: str) -> float:
        return round(median_ratio(_speeds(peers[OMNI], size), _speeds(peers[other], size)), 3)

    against_tcp = [
        Ratio(f"x {TCP}, {size}", ratio(TCP, size), at_least=least, tolerance=TOLERANCE)
        for size, least in FLOORS.items()
    ]
    against_flight = [
        Ratio(f"x {other}, {size}", ratio(other, size), at_least=FLIGHT_GOAL, goal=True, tolerance=TOLERANCE)
        for size in ("8 MB", "32 MB")
        for other in (FLIGHT_WHOLE, FLIGHT)
    ]
    return against_tcp + against_flight


@contextmanager
def start_side(name: str) -> Iterator[Peers]:
    """Yields a side's connected processes. They end with the block."""
    command = [sys.executable, "-m", "benchmarks.transport.peer", name]
    with ExitStack() as stack:
        server = stack.enter_context(_process([*command, "serve"]))
        port = json.loads(_read(server))
        sender = stack.enter_context(_process([*command, "send", str(port)]))
        yield Peers(server, sender)


@contextmanager
def _process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], command: Row) -> Any:
    """Send a command to a process. Returns its answer."""
    if process.stdin is None:
        raise RuntimeError("a peer without stdin")
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()
    return json.loads(_read(process))


def _read(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a peer ended with {process.wait()}: {process.args}")
    return line


def _speeds(side: Peers, size: str) -> list[float]:
    return [sample.gb_per_s for sample in side.samples[size]]


def _us(seconds: list[float], share: float) -> int:
    return round(quantile(seconds, share) * 1e6)
