"""Compares text from gateway and stage with vLLM's own server.

The figures are tokens per second, time to first token, and processor time per token.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.gateway.load import Run
from benchmarks.gateway.serving import MODEL, Served, serve_ours, serve_vllm
from benchmarks.harness.interleave import median_ratio, take_turns
from benchmarks.harness.report import Row
from benchmarks.harness.verdict import Ratio
from benchmarks.tokens.processes import Callers

OURS: Final = "gateway and stage"
VLLM: Final = "vLLM's server"
CLIENT: Final = "load client"
TOKENS: Final = {1: 96, 8: 64, 64: 32}
"""Tokens that each request asks for, by the number of concurrent requests."""
TINY_TOKENS: Final = {1: 256, 8: 256, 64: 256}
RATE_BOUND, FIRST_BOUND = 0.9, 1.1
REAL_TOKENS: Final = {1: 48, 8: 48}
CPU_BOUND: Final = 1.0
TOLERANCE: Final = 0.15
IDLE_S: Final = 0.3
IDLE_SHARE: Final = 0.1
"""Share of a core that idle servers may use at most. Processor time is counted in steps of 10 ms."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one side."""

    tokens_per_s: float
    first_s: float
    """Median time to the first text."""
    last_first_s: float
    cpu_us: dict[str, float]
    """Processor time per token in microseconds, by process."""

    @property
    def all_us(self) -> float:
        """Processor time per token in microseconds of a side's servers and engines, without the client."""
        return sum(us for process, us in self.cpu_us.items() if process != CLIENT)


Samples = dict[tuple[str, int], list[Sample]]


def make_prompts(count: int, number: int) -> list[str]:
    """Returns prompts that differ from the first word on, so that no prefix of them is cached."""
    return [f"{number * 1000 + index} Please write a story." for index in range(count)]


def run_random(folder: Path, callers: Callers, rounds: int, shape: str, counts: dict[int, int]) -> Samples:
    """Run both sides with random weights. `shape`: a key of SHAPES. See run_text."""
    checkpoint = folder / f"{shape}-model"
    subprocess.run([sys.executable, "-m", "benchmarks.gateway.checkpoint", str(checkpoint), shape], check=True)
    return run_text(folder, callers, rounds, shape, checkpoint, counts)


def run_text(
    folder: Path, callers: Callers, rounds: int, name: str, checkpoint: Path, counts: dict[int, int]
) -> Samples:
    """Run both sides with one checkpoint, and send requests to them in turn.

    `name`: the checkpoint's. `counts`: concurrent requests -> tokens of each. Returns the samples of each side and
    number of concurrent requests, one per round.
    """
    folder = folder / name
    folder.mkdir()
    samples: Samples = defaultdict(list)
    with ExitStack() as stack:
        sides = {
            OURS: stack.enter_context(serve_ours(folder, checkpoint)),
            VLLM: stack.enter_context(serve_vllm(folder, checkpoint)),
        }
        for side in sides.values():
            ask(callers, side, 8, 16, -1)
        for number in range(rounds):
            for count, tokens in counts.items():
                for side in take_turns(list(sides), number):
                    wait_idle(sides.values())
                    sample = ask(callers, sides[side], count, tokens, number)
                    samples[side, count].append(sample)
                    print(
                        f"{name}, {count} at once, {side}: {sample.tokens_per_s:.0f} tokens/s, "
                        f"first token {sample.first_s * 1e3:.0f} ms",
                        flush=True,
                    )
    return samples


def wait_idle(sides: Collection[Served], limit_s: float = 10.0) -> None:
    """Wait until no side uses the processor, so that no side's remaining work slows the next run.

    A worker of vLLM's server polls its queue for a second after its last step, which uses a whole core
    (`SpinCondition.busy_loop_s`, vLLM 0.32). Raises RuntimeError after limit_s seconds.
    """
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        before = sum(sum(side.cpu_s().values()) for side in sides)
        time.sleep(IDLE_S)
        if sum(sum(side.cpu_s().values()) for side in sides) - before <= IDLE_S * IDLE_SHARE:
            return
    raise RuntimeError(f"a server is still busy {limit_s:g} s after its last answer")


def ask(callers: Callers, side: Served, count: int, tokens: int, number: int) -> Sample:
    """Send the requests of one run. Returns its figures.

    Raises RuntimeError if an answer has an error or lacks tokens, because that would look fast.
    """
    run = Run(port=side.port, count=count, tokens=tokens, prompts=make_prompts(count, number), model=MODEL)
    before = side.cpu_s()
    callers.start(**run.to_json())
    brought = callers.finish()
    spent = {name: seconds - before.get(name, 0.0) for name, seconds in side.cpu_s().items()}
    for answer in brought["answers"]:
        if answer["error"] or answer["tokens"] != tokens:
            raise RuntimeError(f"an answer is not whole: {answer}")
    firsts = [answer["first_s"] for answer in brought["answers"]]
    made = count * tokens
    return Sample(
        tokens_per_s=made / brought["wall_s"],
        first_s=statistics.median(firsts),
        last_first_s=max(firsts),
        cpu_us={name: seconds / made * 1e6 for name, seconds in {**spent, CLIENT: brought["cpu_s"]}.items()},
    )


def text_rows(samples: Samples) -> list[Row]:
    """Returns a row for each side and number of concurrent requests, with medians over the rounds."""
    return [
        {
            "side": name,
            "at_once": count,
            "tokens_per_s": round(statistics.median(one.tokens_per_s for one in ones), 1),
            "first_token_ms": round(statistics.median(one.first_s for one in ones) * 1e3, 1),
            "last_first_token_ms": round(statistics.median(one.last_first_s for one in ones) * 1e3, 1),
        }
        for (name, count), ones in sorted(samples.items(), key=lambda item: item[0][1])
    ]


def cpu_rows(samples: Samples) -> list[Row]:
    """Returns a row for each process: its microseconds of processor time per token, by number of concurrent requests.

    Each figure is that of the best round.
    """
    names: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for (side, count), ones in samples.items():
        for process in ones[0].cpu_us:
            names[side, process][count] = min(one.cpu_us[process] for one in ones)
    counts = sorted({count for _, count in samples})
    rows = [
        {"side": side, "process": process, **{f"us_{count}_at_once": round(by[count], 1) for count in counts}}
        for (side, process), by in names.items()
    ]
    for side in dict.fromkeys(side for side, _ in samples):
        # The sum leaves out engines and client, so it is the time that a side's servers need in addition to its engine.
        servers = [by for (of, process), by in names.items() if of == side and not _is_apart(process)]
        sums = {f"us_{count}_at_once": round(sum(by[count] for by in servers), 1) for count in counts}
        rows.append({"side": side, "process": "servers together", **sums})
    return rows


def _is_apart(process: str) -> bool:
    return process == CLIENT or process.endswith("engine")


def find_cpu_ratios(samples: Samples, model: str) -> list[Ratio]:
    """Returns the processor time of all processes for a token, relative to vLLM's server in the same round."""
    return [
        Ratio(
            f"processor time a token x vLLM's server, {model}, {count} at once",
            round(
                median_ratio(*([one.all_us for one in samples[side, count]] for side in (OURS, VLLM))),
                3,
            ),
            at_most=CPU_BOUND,
            tolerance=TOLERANCE,
        )
        for count in sorted({count for _, count in samples})
    ]


def find_ratios(samples: Samples) -> list[Ratio]:
    """Returns tokens per second and time to first token, each relative to that of vLLM's server in the same round."""
    ratios = []
    for count in sorted({count for _, count in samples}):
        ours, theirs = samples[OURS, count], samples[VLLM, count]
        rate = median_ratio([one.tokens_per_s for one in ours], [one.tokens_per_s for one in theirs])
        first = median_ratio([one.first_s for one in ours], [one.first_s for one in theirs])
        ratios.append(
            Ratio(f"tokens a second x vLLM's server, {count} at once", round(rate, 3), RATE_BOUND, tolerance=TOLERANCE)
        )
        ratios.append(
            Ratio(
                f"first token x vLLM's server, {count} at once",
                round(first, 3),
                at_most=FIRST_BOUND,
                tolerance=TOLERANCE,
            )
        )
    return ratios
