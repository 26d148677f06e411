"""Measures first audio of a paced pipeline through the gateway and over gRPC, from the same client process."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway.load import GRPC, Run
from benchmarks.gateway.serving import MODEL, Served, serve_gateway
from benchmarks.harness.interleave import median_ratio, take_turns
from benchmarks.harness.report import Row
from benchmarks.harness.verdict import Ratio
from benchmarks.paced.serving import PROMPT, TEXT_TOKENS, serve
from benchmarks.tokens.processes import Callers
from omni_proto.stage_config import EdgeMode
from omni_stage.models.sim.tables import BUILT_IN

TABLE: Final = "qwen2.5-omni-7b-h100"
GATEWAY: Final = "through the gateway"
ROUNDS: Final = {1: 15, 8: 7, 64: 5}
ADDED_MS, SHARE = 5.0, 1.05
TOLERANCE: Final = 1.0
"""How much worse than the last result a figure in milliseconds may be: up to twice as high, because such a figure
depends on the scheduler of a small machine."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side, in seconds."""

    first_s: float
    """Median first audio of its requests."""
    last_s: float
    """The latest first audio of its requests."""


Samples = dict[tuple[str, int], list[Sample]]


def run_speech(folder: Path, callers: Callers, rounds: int | None) -> Samples:
    """Measure gateway and gRPC in turn. Returns the samples.

    A request ends with its first audio, so the next run finds an idle pipeline.
    """
    samples: Samples = defaultdict(list)
    with serve(BUILT_IN / TABLE, EdgeMode.STREAM) as local:
        entry = int(local.endpoint.rpartition(":")[2])
        with serve_gateway(folder, entry) as gateway:
            for kind in (GRPC, GATEWAY):
                ask(callers, gateway, kind, 4)
            for count, most in ROUNDS.items():
                for number in range(rounds or most):
                    for kind in take_turns((GRPC, GATEWAY), number):
                        samples[kind, count].append(ask(callers, gateway, kind, count))
                for kind in (GRPC, GATEWAY):
                    print(f"{kind}, {count} at once: first audio {_first_ms(samples[kind, count]):.1f} ms", flush=True)
    return samples


def ask(callers: Callers, gateway: Served, kind: str, count: int) -> Sample:
    """Send the requests of one run. Returns their first audio. Raises RuntimeError if one gets no audio."""
    run = Run(
        port=gateway.grpc_port if kind == GRPC else gateway.port,
        count=count,
        tokens=TEXT_TOKENS,
        prompts=[PROMPT] * count,
        model=MODEL,
        kind=GRPC if kind == GRPC else "http",
        speech=True,
        leave=True,
    )
    callers.start(**run.to_json())
    answers = callers.finish()["answers"]
    for answer in answers:
        if answer["error"] or not answer["first_s"]:
            raise RuntimeError(f"a request without audio: {answer}")
    firsts = [answer["first_s"] for answer in answers]
    return Sample(statistics.median(firsts), max(firsts))


def speech_rows(samples: Samples) -> list[Row]:
    """Returns a row for each way (gateway or gRPC) and number of concurrent requests, with medians over the rounds."""
    return [
        {
            "way": kind,
            "at_once": count,
            "first_audio_ms": round(_first_ms(ones), 1),
            "last_first_audio_ms": round(statistics.median(one.last_s for one in ones) * 1e3, 1),
            "added_ms": round(_added_ms(samples, count), 1) if kind == GATEWAY else None,
        }
        for (kind, count), ones in samples.items()
    ]


def find_ratios(samples: Samples) -> list[Ratio]:
    """Returns what the gateway adds to first audio: in ms for one request, and as a ratio for 8 and for 64 requests.

    The ratio for 64 has no bound.
    """
    ratios = []
    for count in ROUNDS:
        share = median_ratio(_firsts(samples, GATEWAY, count), _firsts(samples, GRPC, count))
        if count == 1:
            added = round(_added_ms(samples, count), 2)
            ratios.append(Ratio("first audio, ms over gRPC, 1 at once", added, at_most=ADDED_MS, tolerance=TOLERANCE))
        else:
            bound = SHARE if count == 8 else None
            name = f"first audio x gRPC, {count} at once"
            ratios.append(Ratio(name, round(share, 3), at_most=bound, tolerance=0.1, lower_is_better=True))
    return ratios


def _added_ms(samples: Samples, count: int) -> float:
    pairs = zip(_firsts(samples, GATEWAY, count), _firsts(samples, GRPC, count), strict=True)
    return statistics.median(ours - theirs for ours, theirs in pairs) * 1e3


def _firsts(samples: Samples, kind: str, count: int) -> list[float]:
    return [one.first_s for one in samples[kind, count]]


def _first_ms(ones: list[Sample]) -> float:
    return statistics.median(one.first_s for one in ones) * 1e3
