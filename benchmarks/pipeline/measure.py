"""Compares a tiny Qwen2.5-Omni as three processes, Full and Stream, with transformers: same checkpoint and prompts."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.charts import grouped_bars
from benchmarks.harness.interleave import median_ratio, quantile, take_turns
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.pipeline.breakdown import first_row_unix_ns, split, stage_rows
from benchmarks.pipeline.edges import EdgeTotals, read_edges
from benchmarks.pipeline.sides import Answer, Pipeline, Reference, connect, start_pipeline
from benchmarks.pipeline.work import PROMPTS, TALKER_TOKENS, THINKER_TOKENS
from omni_cli.local.pipeline import LocalPipeline

ROUNDS = 5
AT_ONCE = (1, 4, 8)
SAMPLES = {"omni, Full": "tiny-omni-full", "omni, Stream": "tiny-omni"}
REFERENCE = "transformers"
JOBS, STAGES, EDGES = "jobs", "where a request's time goes", "edges"
FLAME_SECONDS = 15
TOLERANCE = 0.3
"""It is large, because many processes share the cores and single runs differ by a fifth."""


@dataclass(slots=True)
class Outcome:
    """Answers of one side for one number of concurrent requests, by round."""

    rounds: list[list[Answer]] = field(default_factory=list)

    def all(self, key: str) -> list[float]:
        """Returns `done` or `first_audio` (`key`) of every answer, in seconds."""
        return [getattr(answer, key) for answers in self.rounds for answer in answers]

    def medians(self, key: str) -> list[float]:
        """Returns the median of `done` or `first_audio` in each round."""
        return [statistics.median(getattr(answer, key) for answer in answers) for answers in self.rounds]

    def makespans(self) -> list[float]:
        """Returns for each round the seconds until all requests were done."""
        return [max(answer.done for answer in answers) for answers in self.rounds]


Outcomes = dict[tuple[str, int], Outcome]


def measure(options: Options) -> Report:
    """Run Full and Stream pipelines and transformers, send requests to them in turn, and return the tables."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # for each stage, because three share the cores
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkpoint = Path(folder) / "model"
        write_checkpoint(checkpoint)
        locals_ = {name: stack.enter_context(start_pipeline(file, checkpoint)) for name, file in SAMPLES.items()}
        reference = Reference(checkpoint)
        stack.callback(reference.close)
        return asyncio.run(_measure(locals_, reference, options))


async def _measure(locals_: dict[str, LocalPipeline], reference: Reference, options: Options) -> Report:
    pipelines = {name: connect(local) for name, local in locals_.items()}
    sides: dict[str, Pipeline | Reference] = {**pipelines, REFERENCE: reference}
    outcomes: Outcomes = defaultdict(Outcome)
    edges: dict[str, dict[str, EdgeTotals]] = {}
    for number in range(-1, options.rounds or ROUNDS):  # the first round warms up
        if number == 0:
            edges = {name: read_edges(side.metrics_ports) for name, side in pipelines.items()}
        for count in AT_ONCE:
            for name in take_turns(list(sides), number):
                answers = await sides[name].ask(PROMPTS[:count])
                if number >= 0:
                    outcomes[name, count].rounds.append(answers)
    tables = {
        JOBS: job_rows(outcomes),
        STAGES: stage_rows(_split_all(outcomes)),
        EDGES: [row for name, side in pipelines.items() for row in _edge_rows(name, side, edges[name], outcomes)],
    }
    for name, side in pipelines.items():
        flame = options.results / f"thinker-{name.rpartition(' ')[2].lower()}.svg"
        await draw_flame(side, flame)
        await side.client.close()
    return Report(tables, find_ratios(tables[JOBS]), NOTES)


NOTES = [
    f"A seeded Qwen2.5-Omni of a few million weights in float32 on CPU: {THINKER_TOKENS} tokens of text, "
    f"{TALKER_TOKENS} codec tokens, greedy, their audio. It shows the pipeline's cost, not the speed of a 7B model.",
    "Three stage servers share the cores, with at_once concurrent requests. transformers is one process that answers "
    "one request after another, as its Qwen2.5-Omni does when it speaks. One OpenMP thread per process.",
    "For transformers, first audio is the end of the job, because it returns only complete audio.",
    "Stages: medians in ms. `input` of a Full edge includes the upstream engine's work. `hand over` is the time to "
    "serialize and send the last rows after the engine's last output; earlier rows were sent while the engine worked.",
]


def write_checkpoint(directory: Path, family: str = "qwen2_5_omni") -> None:
    """Write a family's tiny checkpoint, in a separate process."""
    command = [
        sys.executable,
        "-m",
        "omni_cli",
        "tiny-model",
        str(directory),
        "--seed",
        "0",
        "--family",
        family,
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def job_rows(outcomes: Outcomes) -> list[Row]:
    """Returns a row for each side and number of concurrent requests."""
    return [
        {
            "side": name,
            "at_once": count,
            "job_ms_p50": _ms(statistics.median(outcome.all("done"))),
            "job_ms_p90": _ms(quantile(outcome.all("done"), 0.9)),
            "first_audio_ms_p50": _ms(statistics.median(outcome.all("first_audio"))),
            "jobs_per_s": round(count / statistics.median(outcome.makespans()), 2),
            "job_ratio_to_transformers": round(
                median_ratio(outcomes[REFERENCE, count].medians("done"), outcome.medians("done")), 2
            ),
            "tokens": f"{_tokens(outcome, 'thinker')}+{_tokens(outcome, 'talker')}",
        }
        for (name, count), outcome in sorted(outcomes.items(), key=lambda item: (item[0][1], item[0][0]))
    ]


def find_ratios(rows: Sequence[Row]) -> list[Ratio]:
    """Returns transformers' job time relative to that of each of our sides.

    The ratios have no bound, because a good value depends on the number of cores.
    """
    return [
        Ratio(
            f"{row['side']}, {row['at_once']} at once, x {REFERENCE}",
            row["job_ratio_to_transformers"],
            tolerance=TOLERANCE,
        )
        for row in rows
        if row["side"] != REFERENCE
    ]


def _split_all(outcomes: Outcomes) -> dict[tuple[str, int, str], list[dict[str, float]]]:
    samples: dict[tuple[str, int, str], list[dict[str, float]]] = defaultdict(list)
    for (name, count), outcome in outcomes.items():
        for answer in (answer for answers in outcome.rounds for answer in answers):
            caller = answer.started_unix_ns
            for stage in ("thinker", "talker", "token2wav"):
                timings = answer.stages.get(stage)
                if timings is not None:
                    samples[name, count, stage].append(split(timings, caller))
                    caller = first_row_unix_ns(timings)
    return samples


def _edge_rows(name: str, side: Pipeline, before: dict[str, EdgeTotals], outcomes: Outcomes) -> list[Row]:
    requests = sum(
        len(answers) for (side_name, _), outcome in outcomes.items() if side_name == name for answers in outcome.rounds
    )
    rows = []
    for stage, total in read_edges(side.metrics_ports).items():
        spent = total.since(before.get(stage, EdgeTotals()))
        rows.append(
            {
                "side": name,
                "from": stage,
                "kb_per_request": round(spent.bytes / requests / 1e3, 1),
                "messages_per_request": round(spent.messages / requests, 1),
                "wire_ms_per_request": round(spent.wire_s / requests * 1e3, 2),
                "wire_ms_per_message": round(spent.wire_s / max(1.0, spent.messages) * 1e3, 3),
            }
        )
    return rows


async def draw_flame(side: Pipeline, path: Path) -> None:
    """Draw a flame graph of the thinker's stage server under load, if py-spy is allowed to read the process."""
    command = [str(Path(sys.executable).with_name("py-spy")), "record", "--nonblocking", "--rate", "200"]
    command += ["--duration", str(FLAME_SECONDS), "--output", str(path), "--pid", str(side.pids["thinker"])]
    sampler = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch = asyncio.create_task(sampler.communicate())
    while not watch.done():
        await side.ask(PROMPTS)
    _, complaint = await watch
    if sampler.returncode:
        print(f"no flame graph: {complaint.decode().strip()[-300:]}")
    else:
        await asyncio.to_thread(_hide_folders, path)


def _hide_folders(picture: Path) -> None:
    """Remove this machine's folders from the title, in which py-spy writes its command line."""
    text = picture.read_text()
    for folder in (f"{Path(sys.executable).parent}/", f"{Path.cwd()}/"):
        text = text.replace(folder, "")
    picture.write_text(text)


def _tokens(outcome: Outcome, stage: str) -> float:
    """Returns the average number of tokens of a request."""
    return round(statistics.mean(answer.tokens[stage] for answers in outcome.rounds for answer in answers), 1)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def draw(result: Row, path: Path) -> None:
    """Draw the median job time and first audio of each side, by number of concurrent requests."""
    rows = result["tables"][JOBS]
    panels = {
        f"{what}, {count} at once": {row["side"]: float(row[key]) for row in rows if row["at_once"] == count}
        for what, key in (("job", "job_ms_p50"), ("first audio", "first_audio_ms_p50"))
        for count in dict.fromkeys(row["at_once"] for row in rows)
    }
    ours = [row["side"] for row in rows if row["side"] != REFERENCE]
    grouped_bars(path, panels, title="Three processes against transformers, median", unit="ms", highlight=ours)
