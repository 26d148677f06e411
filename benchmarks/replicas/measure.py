"""Measures how well calls are spread over replicas of a stage, beside gRPC's round robin.

The replicas are real stage servers with paced engines: a step takes 40 ms, and 4 requests run at a time, so a replica
makes 100 tokens a second and two cores carry five of them. Whole pipelines, of up to 12 servers, have half that speed;
there round robin applies to the entry's replicas only.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from benchmarks.harness.interleave import quantile
from benchmarks.harness.report import Options, Report, load
from benchmarks.harness.verdict import Ratio
from benchmarks.replicas.serving import (
    SLOTS,
    STEP_MS,
    Caller,
    Run,
    Speed,
    arrive,
    keep_busy,
    serve,
    step_of,
    window_of,
)
from omni_proto.rpc.balance.choice import Outcome, PodTable

REPLICAS = 4
AT_ONCE = 10
"""Requests in flight for each replica: 2.5 times as many as it runs."""
SECONDS = 15.0
SHORT, LONG = 10, 40
COSTS = 400
PER_SECOND, USUAL, UNEVEN = 8.0, 240, 600
"""Requests a second, and how many: over equal replicas, and over uneven ones, where three are two thirds busy."""
SIDES, TABLE = ("ours", "round robin"), "replicas"
TOKENS_PER_S = SLOTS * 1000 / STEP_MS
CHAIN_STEP_MS = 2 * STEP_MS
CHAIN_AT_ONCE = 16
"""Requests in flight for each replica of a pipeline: 4 in each stage, and as many that wait."""
BALANCED = {
    "thinker": step_of(CHAIN_STEP_MS),
    "talker": step_of(CHAIN_STEP_MS),
    # An answer of 25 frames has two windows; this makes as many frames a second as the others.
    "decoder": window_of(CHAIN_STEP_MS * 25 / 8, slots=1),
}
"""A pipeline whose stages are equally fast."""
SHORT_OF_THINKERS: dict[str, Speed] = {**BALANCED, "talker": step_of(2.0, 64), "decoder": window_of(1.0, 64)}
"""A pipeline in which the thinker is the bottleneck."""
OF_ONE, OF_ALL = "throughput, 1 -> 4 replicas of the bottleneck", "throughput, 1 -> 4 replicas of all stages"


def measure(options: Options) -> Report:
    """Returns throughput, makespan and latency with both ways to choose, and the cost of a choice."""
    with serve({"thinker": [step_of(STEP_MS)] * REPLICAS + [step_of(10 * STEP_MS)]}) as pods:
        found = asyncio.run(_measure(pods[:REPLICAS], pods[REPLICAS]))
    found |= {OF_ONE: _grow(SHORT_OF_THINKERS, ["thinker"]), OF_ALL: _grow(BALANCED, list(BALANCED))}
    choice_us = time_choice()
    rows = [
        {"what": what, **{side: round(value, 3) for side, value in values.items()}} for what, values in found.items()
    ]
    rows.append({"what": "a choice among 100 pods, us", "ours": round(choice_us, 1), "round robin": None})
    ours = {what: values["ours"] for what, values in found.items()}
    ratios = [
        Ratio("throughput, 1 -> 4 replicas", ours["throughput, 1 -> 4 replicas"], at_least=3.8, tolerance=0.1),
        Ratio(OF_ONE, ours[OF_ONE], at_least=3.8, tolerance=0.1),
        Ratio(OF_ALL, ours[OF_ALL], at_least=3.8, tolerance=0.1),
        Ratio("makespan / optimum, costs differ 4x", ours["makespan / optimum, costs differ 4x"], at_most=1.10),
        Ratio("p99, one replica 10x slower", ours["p99, one replica 10x slower"], at_most=1.5, tolerance=0.5),
        Ratio("makespan, two callers / one", ours["makespan, two callers / one"], at_most=1.15),
        Ratio("a choice among 100 pods / 20 us", choice_us / 20, at_most=1.0, tolerance=1.0),
    ]
    return Report({TABLE: rows}, ratios, [f"Load after the run: {load()}."])


async def _measure(pods: Sequence[str], slow: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}

    def note(what: str, side: str, value: float) -> None:
        found.setdefault(what, {})[side] = value
        print(f"{side}: {what} {value:.3f}", flush=True)

    one = _rate(await _busy([pods[0]], 1))
    for side in SIDES:
        round_robin = side != "ours"
        note("throughput, 1 -> 4 replicas", side, _rate(await _busy(pods, REPLICAS, round_robin)) / one)
        draw = random.Random(11)
        costs = [draw.choice((SHORT, LONG)) for _ in range(COSTS)]
        optimum = sum(costs) / (TOKENS_PER_S * REPLICAS)
        alone = await _costs(pods, costs, 1, round_robin)
        note("makespan / optimum, costs differ 4x", side, alone.wall_s / optimum)
        both = await _costs(pods, costs, 2, round_robin)
        note("makespan, two callers / one", side, both.wall_s / alone.wall_s)
        usual = await _latency(pods, USUAL, round_robin)
        # By round robin the slow replica's queue grows without end, so fewer requests show as much.
        uneven = await _latency([*pods[1:], slow], USUAL if round_robin else UNEVEN, round_robin)
        note(
            "p99, one replica 10x slower", side, quantile(uneven.latencies_s, 0.99) / quantile(usual.latencies_s, 0.99)
        )
    return found


def _grow(speeds: dict[str, Speed], grown: Sequence[str]) -> dict[str, float]:
    """Returns how many times the audio of a pipeline with one replica of each stage one with 4 of some stages makes."""

    def run(replicas: int) -> dict[str, float]:
        draw = random.Random(3)
        rate = SLOTS * 1000 / CHAIN_STEP_MS * replicas
        costs = [draw.randint(15, 35) for _ in range(round(2 * SECONDS * rate / 25))]
        at_once = CHAIN_AT_ONCE * replicas

        def send(round_robin: bool) -> Run:
            busy = _with_callers(pods, 1, round_robin, lambda made: keep_busy(made, costs, at_once), speaks=True)
            return asyncio.run(busy)

        with serve({name: [speed] * (replicas if name in grown else 1) for name, speed in speeds.items()}) as pods:
            return {side: _rate(send(side != "ours")) for side in (SIDES if replicas > 1 else SIDES[:1])}

    one = run(1)["ours"]
    grew = {side: rate / one for side, rate in run(REPLICAS).items()}
    print(f"{', '.join(grown)}: {grew}", flush=True)
    return grew


async def _busy(pods: Sequence[str], replicas: int, round_robin: bool = False) -> Run:
    draw = random.Random(3)
    costs = [draw.randint(15, 35) for _ in range(round(SECONDS * TOKENS_PER_S * replicas / 25))]
    return await _with_callers(pods, 1, round_robin, lambda callers: keep_busy(callers, costs, AT_ONCE * replicas))


async def _costs(pods: Sequence[str], costs: Sequence[int], callers: int, round_robin: bool) -> Run:
    return await _with_callers(pods, callers, round_robin, lambda made: keep_busy(made, costs, AT_ONCE * len(pods)))


async def _latency(pods: Sequence[str], requests: int, round_robin: bool) -> Run:
    return await _with_callers(pods, 1, round_robin, lambda made: arrive(made[0], [25] * requests, PER_SECOND))


async def _with_callers(
    pods: Sequence[str],
    count: int,
    round_robin: bool,
    run: Callable[[list[Caller]], Awaitable[Run]],
    speaks: bool = False,
) -> Run:
    callers = [Caller(pods, round_robin=round_robin, speaks=speaks) for _ in range(count)]
    for caller in callers:
        await caller.connect(len(pods) if len(pods) > 1 else 0)
    try:
        return await run(callers)
    finally:
        for caller in callers:
            await caller.client.close()


def _rate(run: Run) -> float:
    """Returns the output a second while all slots had work: without the first tenth and the last quarter."""
    begin, end = run.wall_s * 0.1, run.wall_s * 0.75
    return sum(size for at, size in run.output_at if begin <= at < end) / (end - begin)


def time_choice(pods: int = 100, calls: int = 20_000) -> float:
    """Returns the microseconds of a choice, with the recording of a call's begin and end."""
    table, draw = PodTable(), random.Random(1)
    table.replace(f"ipv4:10.0.0.{number}:50051" for number in range(pods))
    for address in table.addresses:
        table.set_connected(address, True)
    draws = [(draw.random(), draw.random()) for _ in range(calls)]
    running: list[str] = []
    began = time.perf_counter()
    for number, pair in enumerate(draws):
        choice = table.choose(number / 1000, pair)
        if choice is None:
            raise RuntimeError("no pod was chosen")
        table.begin(choice.address)
        running.append(choice.address)
        if number >= 4 * pods:
            table.end(running[number - 4 * pods], Outcome(pace_s=0.1), number / 1000)
    return (time.perf_counter() - began) / calls * 1e6
