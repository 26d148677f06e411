"""The same work on the same number of GPUs, divided in different ways: by stage, whole pipelines, and mixed.

In virtual time (benchmarks/paced/ideal.py), so servers and edges cost nothing, and one process with a GPU for each
stage is the same as three pods. GPUs that stages share divide their time; that they also share memory is left out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.harness.charts import grouped_bars
from benchmarks.harness.interleave import quantile
from benchmarks.harness.page import replace_section
from benchmarks.harness.report import Row
from benchmarks.paced.ideal import STAGES, run_ideal
from benchmarks.paced.rate import arrivals, continuity
from omni_stage.models.sim.capacity import AUDIBLE_S, Work
from omni_stage.models.sim.tables import BUILT_IN, Table, read_table

ROOT: Final = Path(__file__).parents[2]
RESULT: Final = ROOT / "benchmarks" / "results" / "scaling.json"
PAGE: Final = ROOT / "docs" / "sizing.md"
PICTURE: Final = ROOT / "docs" / "images" / "equal-gpus.png"
TABLE: Final = "the same GPUs, divided differently"
SHARE: Final = 0.95
"""Share of answers whose first audio is in time, and of those without a gap."""
WINDOW_S: Final = 20.0
"""Requests arrive during this time. The first quarter of them does not count: the pipeline fills up."""
SPEECH_S: Final = 5.0
PIPELINE: Final = tuple(STAGES)
LAYOUTS: Final[Mapping[str, Sequence[Collection[str]]]] = {
    "by stage: 1 + 1 + 1": [(stage,) for stage in STAGES],
    "3 whole pipelines": [PIPELINE] * 3,
    "mixed: 2 decoders": [("thinker", "talker"), ("decoder",), ("decoder",)],
    "mixed: 3 decoders, 2 of them share": [("thinker", "decoder"), ("talker", "decoder"), ("decoder",)],
    "by stage: 1 + 1 + 4": [("thinker",), ("talker",), *[("decoder",)] * 4],
    "6 whole pipelines": [PIPELINE] * 6,
    "mixed: 5 decoders": [("thinker", "talker"), *[("decoder",)] * 5],
}
"""The stages on each GPU."""


class Objective(NamedTuple):
    """What listeners are promised."""

    first_audio_s: float
    gap_s: float
    """A shorter gap counts as none: a player that waits so long before it begins hides it."""

    def __str__(self) -> str:
        return f"{self.first_audio_s * 1000:.0f} ms, gaps {self.gap_s * 1000:.0f} ms"


CASES: Final[Mapping[str, tuple[Objective, Objective]]] = {
    "qwen2.5-omni-7b-h100": (Objective(0.4, AUDIBLE_S), Objective(1.0, 0.25)),
    "qwen3-omni-30b-a3b-h200": (Objective(0.1, AUDIBLE_S), Objective(0.3, 0.25)),
}
"""Table -> a strict objective, and one for a player that waits a quarter of a second."""


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


def hear(
    table: Table,
    work: Work,
    gpus: Sequence[Collection[str]],
    seconds: float = WINDOW_S,
    gap_s: float = AUDIBLE_S,
) -> Heard:
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
    return Heard(quantile([one.first_audio for one in counted], SHARE), continuity(counted, gap_s))


def find_rate(table: Table, gpus: Sequence[Collection[str]], objective: Objective) -> float:
    """Returns the highest rate that keeps an objective, in requests a second, within 5 %."""

    def keeps(rate: float) -> bool:
        heard = hear(table, Work(rate, SPEECH_S, 50), gpus, gap_s=objective.gap_s)
        return heard.keeps(objective.first_audio_s)

    low, high = 0.0, 1.0
    while keeps(high):
        low, high = high, 2 * high
    while high - low > 0.05 * high and high > 0.1:
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def compare() -> list[Row]:
    """Returns first audio of a request alone, and the highest rates, of each table and layout."""
    rows: list[Row] = []
    for name, (strict, lenient) in CASES.items():
        table = read_table(BUILT_IN / name)
        for layout, gpus in LAYOUTS.items():
            if len(gpus) > 3 and table.decoder.most_frames is not None:
                continue  # one decoder is enough there
            rows.append(
                {
                    "table": name,
                    "GPUs": len(gpus),
                    "stages on GPUs": layout,
                    "first audio alone ms": round(hear(table, Work(0.1, SPEECH_S, 50), gpus).first_audio_s * 1000),
                    "strict": str(strict),
                    "requests/s, strict": round(find_rate(table, gpus, strict), 2),
                    "lenient": str(lenient),
                    "requests/s, lenient": round(find_rate(table, gpus, lenient), 2),
                }
            )
            print(rows[-1], flush=True)
    return rows


def fill_page(rows: Sequence[Row], page: str) -> str:
    """Returns docs/sizing.md with the rows as tables, one for each table of step times."""
    parts = []
    for name, (strict, lenient) in CASES.items():
        parts += [
            f"| {name} | first audio alone | {strict} | {lenient} |",
            "|---|---|---|---|",
            *(
                f"| {row['stages on GPUs']} | {row['first audio alone ms']} ms | {row['requests/s, strict']:g} "
                f"| {row['requests/s, lenient']:g} |"
                for row in rows
                if row["table"] == name
            ),
            "",
        ]
    return replace_section(page, "equal GPUs", "\n" + "\n".join(parts))


def draw_rates(rows: Sequence[Row], path: Path) -> None:
    """Draw the highest rates of the first table on three GPUs."""
    name, objectives = next(iter(CASES.items()))
    chosen = [row for row in rows if row["table"] == name and row["GPUs"] == 3]
    panels = {
        f"first audio {objective}": {row["stages on GPUs"]: row[f"requests/s, {kind}"] for row in chosen}
        for kind, objective in zip(("strict", "lenient"), objectives, strict=True)
    }
    grouped_bars(path, panels, title=f"{name}: requests a second on three GPUs", unit="", highlight=())


def main() -> None:
    """Write docs/sizing.md and its picture from the committed result."""
    rows = json.loads(RESULT.read_text(encoding="utf-8"))["tables"][TABLE]
    PAGE.write_text(fill_page(rows, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_rates(rows, PICTURE)


if __name__ == "__main__":
    main()
