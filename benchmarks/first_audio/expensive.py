"""Compares a pipeline with transformers for a model with expensive tokens: first audio, and audio per second."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.first_audio.expensive_checkpoint import SHAPE
from benchmarks.first_audio.serving import CODES_PER_SECOND, THINKER_TOKENS, Heard, ask, sampling_of
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.pipeline.sides import Answer, Pipeline, Reference, connect, start_pipeline
from benchmarks.pipeline.work import PROMPTS
from omni_cli.local.pipeline import LocalPipeline
from omni_stage.models.qwen2_5_omni.checkpoint import Blocks, first_codes

Sampling = Mapping[str, Mapping[str, Any]]

AT_ONCE = (1, 4, 8)
CODES = 64
STEP_TOKENS = 64
"""maxNumBatchedTokens of thinker and talker."""
ROUNDS = 2
REFERENCE_REQUESTS = 2
"""Requests that transformers answers in a round, one after another. More requests would not change its rate."""
FIRST_CODES = first_codes(Blocks(SHAPE.block_size // 2, back=2, ahead=1))
"""Codec tokens that the first window needs. Each token makes two mel frames."""
LEAST_OF = {4: 2, 8: 4}
"""Number of concurrent requests -> how many of them have audio when the median request gets its first audio."""
HEARD, PROCESSORS, LEAST = "what listeners hear", "processor time by stage", "what the first audio costs at least"
TOLERANCE = 0.3
NOTES = [
    f"A seeded Qwen2.5-Omni in float32 on CPU whose thinker and talker have a hidden size of 1,024 and 14 layers: "
    f"{THINKER_TOKENS} tokens of text and {CODES} codec tokens, which are {CODES / CODES_PER_SECOND:g} s of audio. "
    "Stages as in manifests/samples/tiny-omni.yaml. Their KV cache has 64 MiB, and a token needs 28 KiB of it. "
    f"maxNumBatchedTokens is {STEP_TOKENS}: a CPU computes prompts one by one as fast as in a batch, and the talker "
    "then starts with the first prompt while the thinker reads the second.",
    "Every process has one OpenMP thread, transformers too.",
    "`cores` counts the stage server and its engine. The limit is the audio per second if no stage ever waited: "
    "cores / (processor seconds of all stages for a second of audio).",
    "least_first_over_job is a lower bound of first_over_job. It takes the requests that must have audio for the "
    f"median, each only to the end of its first window ({FIRST_CODES} codec tokens), and divides their processor "
    "seconds by those of all whole jobs. No order of the same work can give less, even if no core ever waited.",
]


@dataclass(frozen=True, slots=True)
class Usage:
    """The processor time that the stages used, and how much audio they made with it."""

    cpu_s: Mapping[str, float]
    """Processor seconds, by stage."""
    wall_s: float
    audio_s: float
    cores: int

    @property
    def limit(self) -> float:
        """Seconds of audio per second that the machine's cores would make if no stage ever waited."""
        return self.cores * self.audio_s / sum(self.cpu_s.values())

    def rows(self, at_once: int) -> list[Row]:
        """Returns one row for each stage."""
        return [
            {
                "at_once": at_once,
                "stage": stage,
                "cores": round(cpu / self.wall_s, 2),
                "share_percent": round(100 * cpu / sum(self.cpu_s.values())),
                "cpu_s_per_audio_s": round(cpu / self.audio_s, 2),
            }
            for stage, cpu in self.cpu_s.items()
        ]


def read_cpu(pids: Mapping[str, int]) -> dict[str, float]:
    """Returns the processor seconds so far of each stage: its stage server and all processes below it."""
    totals = {}
    for stage, pid in pids.items():
        server = psutil.Process(pid)
        times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
        totals[stage] = sum(time.user + time.system for time in times)
    return totals


@dataclass(slots=True)
class Outcome:
    """The results of all rounds with one number of concurrent requests."""

    cold: list[Heard] = field(default_factory=list)
    """The first round, which no other figure contains."""
    heard: list[Heard] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def audio_s(self) -> float:
        """Seconds of audio that were made."""
        return sum(one.playback.audio for one in self.heard)


def measure(options: Options) -> Report:
    """Start a Stream pipeline and transformers, send requests to them in turn, and return the tables."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkpoint = Path(folder) / "model"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.first_audio.expensive_checkpoint", str(checkpoint)], check=True
        )
        local = stack.enter_context(start_pipeline("tiny-omni", checkpoint, STEP_TOKENS))
        reference = Reference(checkpoint)
        stack.callback(reference.close)
        outcomes, least, answers = asyncio.run(_ask_all(local, reference, options.rounds or ROUNDS))
    cores = os.cpu_count() or 1
    usages = {
        count: Usage(outcome.cpu_s, outcome.wall_s, outcome.audio_s, cores) for count, outcome in outcomes.items()
    }
    heard = [*(heard_row(count, outcome) for count, outcome in outcomes.items()), reference_row(answers)]
    processors = [row for count, usage in usages.items() for row in usage.rows(count)]
    costs = least_rows(least, outcomes)
    return Report({HEARD: heard, PROCESSORS: processors, LEAST: costs}, find_ratios(heard, usages), NOTES)


async def _ask_all(
    local: LocalPipeline, reference: Reference, rounds: int
) -> tuple[dict[int, Outcome], dict[int, Outcome], list[list[Answer]]]:
    pipeline, sampling = connect(local), sampling_of(CODES / CODES_PER_SECOND)
    await ask(pipeline.client, 1, sampling)
    first = shorten(sampling, FIRST_CODES)
    outcomes = {count: Outcome() for count in AT_ONCE}
    least = {count: Outcome() for count in LEAST_OF.values()}
    answers: list[list[Answer]] = []
    for count, outcome in outcomes.items():
        outcome.cold = await ask(pipeline.client, count, sampling)
    for _ in range(rounds):
        for count, outcome in outcomes.items():
            await _ask_once(pipeline, count, sampling, outcome)
        for count, outcome in least.items():
            await _ask_once(pipeline, count, first, outcome)
        answers.append(await reference.ask(PROMPTS[:REFERENCE_REQUESTS], CODES))
    await pipeline.client.close()
    return outcomes, least, answers


async def _ask_once(pipeline: Pipeline, count: int, sampling: Sampling, outcome: Outcome) -> None:
    before, began = read_cpu(pipeline.pids), time.perf_counter()
    outcome.heard += await ask(pipeline.client, count, sampling)
    outcome.wall_s += time.perf_counter() - began
    for stage, spent in read_cpu(pipeline.pids).items():
        outcome.cpu_s[stage] += spent - before[stage]


def shorten(sampling: Sampling, codes: int) -> Sampling:
    """Returns sampling for requests that end with their first window of `codes` codec tokens.

    The talker needs a row of text for each codec token.
    """
    return {
        "thinker": {**sampling["thinker"], "max_tokens": codes + 1},
        "talker": {**sampling["talker"], "max_tokens": codes},
    }


def least_rows(least: Mapping[int, Outcome], outcomes: Mapping[int, Outcome]) -> list[Row]:
    """Returns a row for each number of concurrent requests in LEAST_OF.

    A row gives the smallest share of all requests' processor time that is needed before the median first audio.
    """
    rows: list[Row] = []
    for count, heard in LEAST_OF.items():
        first, whole = sum(least[heard].cpu_s.values()), sum(outcomes[count].cpu_s.values())
        rows.append(
            {
                "at_once": count,
                "heard": heard,
                "first_cpu_s": round(first, 2),
                "jobs_cpu_s": round(whole, 2),
                "least_first_over_job": round(first / whole, 3),
            }
        )
    return rows


def heard_row(count: int, outcome: Outcome) -> Row:
    """Returns the pipeline's row for one number of concurrent requests."""
    first = statistics.median(one.playback.first for one in outcome.heard)
    job = statistics.median(one.done for one in outcome.heard)
    return {
        "side": "Stream",
        "at_once": count,
        "first_audio_s_p50": round(first, 2),
        "cold_first_audio_s_p50": round(statistics.median(one.playback.first for one in outcome.cold), 2),
        "first_audio_s_max": round(max(one.playback.first for one in outcome.heard), 2),
        "job_s_p50": round(job, 2),
        "first_over_job": round(first / job, 3),
        "audio_s_per_s": round(outcome.audio_s / outcome.wall_s, 3),
    }


def reference_row(rounds: Sequence[Sequence[Answer]]) -> Row:
    """Returns the row of transformers, which answers one request after another and returns only complete audio."""
    wall = sum(max(answer.done for answer in answers) for answers in rounds)
    audio = sum(answer.tokens["talker"] for answers in rounds for answer in answers) / CODES_PER_SECOND
    jobs = sum(len(answers) for answers in rounds)
    return {
        "side": "transformers",
        "at_once": 1,
        "first_audio_s_p50": round(wall / jobs, 2),
        "first_audio_s_max": round(wall / jobs, 2),
        "job_s_p50": round(wall / jobs, 2),
        "first_over_job": 1.0,
        "audio_s_per_s": round(audio / wall, 3),
    }


def find_ratios(rows: Sequence[Row], usages: dict[int, Usage]) -> list[Ratio]:
    """Returns first audio relative to the job's time, and audio per second relative to that of transformers and to the
    limit of the cores."""
    reference = rows[-1]["audio_s_per_s"]
    ratios = []
    for row in rows[:-1]:
        count = row["at_once"]
        bound = 0.25 if count == 8 else None
        ratios.append(
            Ratio(
                f"first audio x job, {count} at once",
                row["first_over_job"],
                at_most=bound,
                goal=True,
                tolerance=TOLERANCE,
                lower_is_better=True,
            )
        )
        ratios.append(
            Ratio(
                f"audio a second x transformers, {count} at once",
                round(row["audio_s_per_s"] / reference, 2),
                at_least=3.0 if count == 8 else None,
                goal=True,
                tolerance=TOLERANCE,
            )
        )
        ratios.append(
            Ratio(
                f"audio a second x the cores' limit, {count} at once",
                round(row["audio_s_per_s"] / usages[count].limit, 2),
                at_least=0.8 if count == 8 else None,
                goal=True,
                tolerance=TOLERANCE,
            )
        )
    return ratios
