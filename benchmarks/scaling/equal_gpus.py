"""The same work on the same number of GPUs, divided in different ways: by stage, whole pipelines, and mixed.

In virtual time (benchmarks/paced/ideal.py), so servers and edges cost nothing, and one process with a GPU for each
stage is the same as three pods. GPUs that stages share divide their time; that they also share memory is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.interleave import quantile
from benchmarks.harness.report import Row
from benchmarks.paced.ideal import STAGES, run_ideal
from benchmarks.paced.rate import arrivals, continuity
from omni_stage.models.sim.capacity import AUDIBLE_S, Work
from omni_stage.models.sim.tables import BUILT_IN, Table, read_table

SHARE: Final = 0.95
"""Share of answers whose first audio is in time, and of those without a gap."""
WINDOW_S: Final = 30.0
"""Requests arrive during this time. Of these, the first quarter does not count: the pipeline fills up."""
SPEECH_S: Final = 5.0
LAYOUTS: Final[Mapping[str, Sequence[Collection[str]]]] = {
    "a GPU a stage": [(stage,) for stage in STAGES],
    "a pipeline a GPU": [STAGES] * 3,
    "decoder alone on two": [("thinker", "talker"), ("decoder",), ("decoder",)],
    "thinker and talker alone, a decoder everywhere": [("thinker", "decoder"), ("talker", "decoder"), ("decoder",)],
}
"""The stages on each of three GPUs."""
CASES: Final = {"qwen2.5-omni-7b-h100": 0.4, "qwen3-omni-30b-a3b-h200": 0.15}
"""Table -> first audio that is promised, in seconds: about twice that of a request alone, or more."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What listeners heard."""

    first_audio_s: float
    """First audio at the 95th percentile."""
    continuous: float
    """Share of answers without an audible gap."""

    def keeps(self, first_audio_s: float) -> bool:
        """Returns whether a promise was kept."""
        return self.first_audio_s <= first_audio_s and self.continuous >= SHARE


def gpus_of(pods: Mapping[str, int]) -> list[tuple[str]]:
    """Returns the stages on each GPU if no stages share one."""
    return [(stage,) for stage in STAGES for _ in range(pods[stage])]


def hear(table: Table, work: Work, gpus: Sequence[Collection[str]], seconds: float = WINDOW_S) -> Heard:
    """Returns what listeners hear if requests arrive at random times for so many seconds."""
    starts = arrivals(work.rate, seconds, seed=2)
    # Nobody reads the rows, and they take most of the time to make.
    thinker = table.thinker.model_copy(update={"row_values": 0})
    outcomes = run_ideal(
        table.model_copy(update={"thinker": thinker}),
        streams=True,
        prompt_tokens=work.prompt_tokens,
        text_tokens=work.text_tokens(table),
        frames=work.frames(table),
        starts=starts,
        gpus=gpus,
    )
    counted = outcomes[len(outcomes) // 4 :]
    return Heard(quantile([one.first_audio for one in counted], SHARE), continuity(counted, AUDIBLE_S))


def find_rate(table: Table, gpus: Sequence[Collection[str]], first_audio_s: float) -> float:
    """Returns the highest rate that keeps the promise, in requests a second, within 4 %."""

    def keeps(rate: float) -> bool:
        return hear(table, Work(rate, SPEECH_S, 50), gpus).keeps(first_audio_s)

    low, high = 0.0, 1.0
    while keeps(high):
        low, high = high, 2 * high
    while high - low > 0.04 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def compare() -> list[Row]:
    """Returns the highest rate of each layout, and first audio of a request alone."""
    rows: list[Row] = []
    for name, promised in CASES.items():
        table = read_table(BUILT_IN / name)
        for layout, gpus in LAYOUTS.items():
            alone = hear(table, Work(0.1, SPEECH_S, 50), gpus)
            rows.append(
                {
                    "table": name,
                    "three GPUs": layout,
                    "promised ms": round(promised * 1000),
                    "first audio alone ms": round(alone.first_audio_s * 1000),
                    "most requests/s": round(find_rate(table, gpus, promised), 2),
                }
            )
            print(rows[-1], flush=True)
    return rows
