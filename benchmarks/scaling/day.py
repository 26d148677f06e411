"""A day of traffic on a pipeline whose stages scale, in virtual time: the operator's own decision against an oracle.

A stage is a number of pods that share its requests evenly. A request takes longer in a larger batch, as a table of step
times says; and its first audio too, plus the time that it waits. Arrivals are a Poisson process. One tick is one
second; nothing here reads a clock.

The oracle knows the rate of every second and needs no time to start a pod. It has the fewest pods whose mean batch,
and twice its standard deviation, stays within what the objective allows.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchmarks.harness.charts import OTHER, OURS
from benchmarks.scaling.traffic import DAY_S, day_rate
from omni_operator.scaling.decision import StageAsk, StageLoad, StageMemory, decide_scale
from omni_proto.pipeline.types.scaling import ScalingBehavior

EVERY_S: Final = 15
"""Seconds between two decisions."""
SHARE: Final = 0.05
"""A minute is missed if more than this share of its requests miss the objective: the percentile is 95."""


@dataclass(frozen=True, slots=True)
class StageModel:
    """A stage's speed."""

    name: str
    seconds: float
    """Time of a request alone in a pod."""
    slope: float
    """Share by which each further request in the batch slows all of them down."""
    first: float
    """Time until the first output of a request alone in a pod."""
    limit: int
    """Requests in the largest batch."""
    allowed: float
    """Batch at which the objective is just met."""
    start_s: float
    """Time until a new pod serves."""

    def slowed(self, batch: float) -> float:
        """Returns how many times longer everything takes in a batch of that size."""
        return 1.0 + self.slope * max(0.0, batch - 1.0)

    def rate(self, batch: float) -> float:
        """Returns the requests per second of one pod with that batch."""
        return batch / (self.seconds * self.slowed(batch))


STAGES: Final = (
    StageModel("thinker", 2.0, 0.010, 0.08, 64, 40.0, 120.0),
    StageModel("talker", 4.0, 0.015, 0.05, 64, 32.0, 90.0),
    StageModel("decoder", 4.0, 0.010, 0.02, 128, 48.0, 45.0),
)
"""A pipeline of the shape of Qwen2.5-Omni, with numbers of the size of its paced tables."""
OBJECTIVE_S: Final = sum(stage.first * stage.slowed(stage.allowed) for stage in STAGES)
"""First audio that is promised, in seconds."""


@dataclass(slots=True)
class _Pods:
    """The pods and requests of one stage."""

    wanted: int
    ready: int
    starting: list[float] = field(default_factory=list)
    requests: float = 0.0
    ran: float = 0.0
    waited: float = 0.0
    """Request-seconds in the engines since the last decision, running and waiting."""
    came: float = 0.0
    done: float = 0.0
    """Requests that arrived and ended since the last decision."""


@dataclass(frozen=True, slots=True)
class DayResult:
    """What a day showed."""

    met: float
    """Share of minutes in which the objective was met."""
    replica_seconds: float
    oracle_seconds: float
    most_reversals: int
    """Largest number of changes of direction of one stage within 10 minutes."""

    @property
    def cost(self) -> float:
        """Replica-seconds, as a multiple of the oracle's."""
        return self.replica_seconds / self.oracle_seconds


@lru_cache(maxsize=1 << 16)
def oracle_pods(stage: StageModel, rate: float) -> int:
    """Returns the fewest pods that meet the objective at a rate of requests per second."""
    busy, fixed = rate * stage.seconds * stage.slope, rate * stage.seconds * (1.0 - stage.slope)
    pods = max(1, math.ceil(busy + fixed / stage.allowed))
    while True:
        # The batch in the steady state: Little's law with the batch's own slowdown.
        if pods > busy:
            inside = fixed * pods / (pods - busy)
            if inside + 2.0 * math.sqrt(inside) <= pods * stage.allowed:
                return pods
        pods += 1


def run_day(
    rate_at: Callable[[int], float] = day_rate,
    stages: Sequence[StageModel] = STAGES,
    *,
    seconds: int = DAY_S,
    seed: int = 0,
    share: float = 0.9,
    behavior: ScalingBehavior | None = None,
    note: Callable[[int, dict[str, tuple[int, int]]], None] | None = None,
) -> DayResult:
    """Returns what `seconds` of traffic showed. share: targetRequests as a share of the allowed batch.

    `note` gets each second, and of each stage the pods that run or start, and the oracle's.
    """
    draw = random.Random(seed)
    first = rate_at(0)
    pods = {stage.name: _Pods(count := oracle_pods(stage, first), count) for stage in stages}
    memory: dict[str, StageMemory] = {}
    turns: dict[str, list[tuple[int, int]]] = {stage.name: [] for stage in stages}
    missed = total = bad_minutes = 0.0
    used = ideal = 0.0
    for second in range(seconds):
        rate = rate_at(second)
        arrivals = float(_poisson(draw, rate))
        total += arrivals
        latency = 0.0
        flow = arrivals
        for stage in stages:
            one = pods[stage.name]
            one.ready += sum(at <= second for at in one.starting)
            one.starting = [at for at in one.starting if at > second]
            running = min(one.requests, float(one.ready * stage.limit))
            batch = running / one.ready
            done = min(running, one.ready * stage.rate(batch)) if running else 0.0
            wait_s = (one.requests - running) / max(done, 1e-9) if one.requests > running else 0.0
            latency += stage.first * stage.slowed(batch) + wait_s
            one.ran += running
            one.waited += one.requests - running
            one.came += flow
            one.done += done
            one.requests += flow - done
            flow = done
            used += one.ready + len(one.starting)
            ideal += oracle_pods(stage, rate)
        if note is not None:
            counts = {name: one.ready + len(one.starting) for name, one in pods.items()}
            note(second, {stage.name: (counts[stage.name], oracle_pods(stage, rate)) for stage in stages})
        missed += arrivals if latency > OBJECTIVE_S * 1.001 else 0.0
        if second % 60 == 59:
            bad_minutes += missed > SHARE * total
            missed = total = 0.0
        if second % EVERY_S == EVERY_S - 1:
            _scale(stages, pods, memory, float(second), share, behavior or ScalingBehavior(), turns)
    most = max(most_reversals(changes) for changes in turns.values())
    return DayResult(1.0 - bad_minutes / (seconds / 60), used, ideal, most)


def _scale(
    stages: Sequence[StageModel],
    pods: dict[str, _Pods],
    memory: dict[str, StageMemory],
    now: float,
    share: float,
    behavior: ScalingBehavior,
    turns: dict[str, list[tuple[int, int]]],
) -> None:
    asks, above = [], None
    for stage in stages:
        target = share * stage.allowed
        asks.append(
            StageAsk(
                stage.name, above, pods[stage.name].wanted, 1, 1000, behavior, target=target, start_s=stage.start_s
            )
        )
        above = stage.name
    loads = {}
    for stage in stages:
        one = pods[stage.name]
        ran, waited, came, done = (total / EVERY_S for total in (one.ran, one.waited, one.came, one.done))
        loads[stage.name] = StageLoad(ran, waited, stage.limit, came, done)
        one.ran = one.waited = one.came = one.done = 0.0
    for name, decision in decide_scale(asks, loads, memory, now).items():
        one = pods[name]
        change = decision.replicas - one.wanted
        if change:
            turns[name].append((int(now), change))
        one.wanted = decision.replicas
        start_s = next(stage.start_s for stage in stages if stage.name == name)
        one.starting += [now + start_s] * max(0, one.wanted - one.ready - len(one.starting))
        while one.starting and one.ready + len(one.starting) > one.wanted:
            one.starting.pop()
        one.ready = min(one.ready, max(1, one.wanted))


def most_reversals(changes: Sequence[tuple[int, int]]) -> int:
    """Returns the largest number of changes of direction within 10 minutes."""
    times = [at for (_, before), (at, change) in itertools.pairwise(changes) if (before > 0) != (change > 0)]
    return max((sum(at - 600 < other <= at for other in times) for at in times), default=0)


def _poisson(draw: random.Random, mean: float) -> int:
    """Returns a number of a Poisson distribution, by the times between arrivals."""
    count, left = 0, draw.expovariate(1.0)
    while left < mean:
        count += 1
        left += draw.expovariate(1.0)
    return count


def draw_day(path: Path) -> None:
    """Draw the pods of each stage over the designed day, with the oracle's."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    hours: list[float] = []
    series: dict[str, list[tuple[int, int]]] = {stage.name: [] for stage in STAGES}

    def note(second: int, pods: dict[str, tuple[int, int]]) -> None:
        if second % 30 == 0:
            hours.append(second / 3600)
            for name, one in pods.items():
                series[name].append(one)

    run_day(note=note)
    figure, axes = pyplot.subplots(len(series), 1, figsize=(8, 5), sharex=True)
    for axis, (name, values) in zip(axes, series.items(), strict=True):
        ours, ideal = zip(*values, strict=True)
        axis.fill_between(hours, ideal, step="post", color=OTHER, label="an oracle that starts pods at once")
        axis.step(hours, ours, where="post", color=OURS, linewidth=1.2, label="pods")
        axis.set_ylabel(name, fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8, frameon=False)
    axes[-1].set_xlabel("hour of the day", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    pyplot.close(figure)


if __name__ == "__main__":
    draw_day(Path(__file__).parents[2] / "docs" / "images" / "scaled-day.png")
