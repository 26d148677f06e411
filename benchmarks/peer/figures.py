"""Makes tables and ratios from the sides' answers. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.harness.interleave import median_ratio
from benchmarks.harness.report import Row
from benchmarks.harness.verdict import Ratio

OURS: Final = "ours 8/8/8"
JOBS: Final = "jobs"
STARTS: Final = "start"
LIMITS: Final[Mapping[str, tuple[int, int, int]]] = {
    "vllm-omni 8/8/8": (8, 8, 8),
    "vllm-omni 8/8/1": (8, 8, 1),
    "vllm-omni 1/1/1": (1, 1, 1),
}
"""vllm-omni's limits of concurrent requests in thinker, talker and code2wav. The first are those of our pipeline, the
second allow one utterance at a time in code2wav, and the third are vllm-omni's defaults."""
EQUAL: Final = "vllm-omni 8/8/8"
BOUNDS: Final[Mapping[str, float]] = {"all done": 0.8, "job": 0.95, "first audio": 0.2, "processor time a job": 0.7}
"""Figure -> goal: upper bound of our value relative to vllm-omni's, with equal limits and with the limits at which
vllm-omni is best, for the most concurrent requests."""
TOLERANCE: Final = 0.3


@dataclass(frozen=True, slots=True)
class Reference:
    """transformers' answer to a prompt."""

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    codes: tuple[int, ...]
    samples: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Times of one request, in seconds since all requests of the round were sent."""

    done: float
    first_audio: float | None
    """None if the request got no audio."""
    samples: int
    text: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Round:
    """One side's answers to prompts that were sent together."""

    answers: Sequence[Answer]
    codes: Sequence[Sequence[int]]
    """Codec tokens of each call of the last stage, which makes audio from them. The calls are in any order."""
    cpu_s: float
    """Processor seconds of all processes of the side."""

    def figures(self) -> dict[str, float]:
        """Returns the compared figures, in seconds. If a request got no audio, its end counts as its first audio."""
        return {
            "all done": max(answer.done for answer in self.answers),
            "job": statistics.median(answer.done for answer in self.answers),
            "first audio": statistics.median(
                answer.done if answer.first_audio is None else answer.first_audio for answer in self.answers
            ),
            "processor time a job": self.cpu_s / len(self.answers),
        }


@dataclass(frozen=True, slots=True)
class Start:
    """How one side started."""

    seconds: float
    cpu_s: float
    memory_mib: float
    """Resident memory. Pages that processes share are counted once."""
    idle_cores: float
    """Cores that the side keeps busy without a request."""


@dataclass(slots=True)
class Outcome:
    """All rounds of one side with one number of concurrent requests."""

    rounds: list[Round] = field(default_factory=list)

    def figure(self, name: str) -> list[float]:
        """Returns a figure's value in each round."""
        return [one.figures()[name] for one in self.rounds]


Outcomes = Mapping[tuple[str, int], Outcome]


def parse_references(made: Sequence[Mapping[str, Any]], codes: int) -> list[Reference]:
    """Returns the reference's answers. Raises ValueError if one has not exactly `codes` codec tokens.

    The sides are asked for exactly that many.
    """
    for number, one in enumerate(made):
        if len(one["codes"]) != codes:
            raise ValueError(f"transformers made {len(one['codes'])} of {codes} codec tokens of prompt {number}")
    return [Reference(tuple(one["prompt"]), tuple(one["text"]), tuple(one["codes"]), one["samples"]) for one in made]


def parse_round(line: Mapping[str, Any], cpu_s: float) -> Round:
    """Returns the round in a line that benchmarks/peer/engine.py printed."""
    answers = [Answer(one["done"], one["first_audio"], one["samples"], tuple(one["text"])) for one in line["answers"]]
    return Round(answers, line["codes"], cpu_s)


def count_equal(made: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> int:
    """Returns how many of the expected sequences are in `made`. Each made sequence matches at most one expected one."""
    return (Counter(map(tuple, made)) & Counter(map(tuple, expected))).total()


def job_rows(outcomes: Outcomes, references: Sequence[Reference]) -> list[Row]:
    """Returns a row for each side and number of concurrent requests: medians, and how many answers are correct."""
    rows: list[Row] = []
    for (side, count), outcome in sorted(outcomes.items(), key=lambda item: (item[0][1], item[0][0])):
        expected, requests = references[:count], count * len(outcome.rounds)
        codes = sum(count_equal(one.codes, [each.codes for each in expected]) for one in outcome.rounds)
        pairs = [
            (answer, reference)
            for one in outcome.rounds
            for answer, reference in zip(one.answers, expected, strict=True)
        ]
        texts = sum(answer.text == reference.text for answer, reference in pairs)
        lengths = sum(answer.samples == reference.samples for answer, reference in pairs)
        silent = sum(answer.first_audio is None for answer, _ in pairs)
        rows.append(
            {
                "side": side,
                "at_once": count,
                "makespan_s": _median(outcome, "all done"),
                "job_s_p50": _median(outcome, "job"),
                "first_audio_s_p50": _median(outcome, "first audio") if silent == 0 else None,
                "cpu_s_per_job": _median(outcome, "processor time a job"),
                "text_as_transformers": f"{texts} of {requests}",
                "codec_tokens_as_transformers": f"{codes} of {requests}",
                "audio_of_its_length": f"{lengths} of {requests}",
            }
        )
    return rows


def start_rows(starts: Mapping[str, Start]) -> list[Row]:
    """Returns a row for each side's start."""
    return [
        {
            "side": side,
            "ready_s": round(start.seconds, 1),
            "cpu_s": round(start.cpu_s, 1),
            "memory_mib": round(start.memory_mib),
            "idle_cores": round(start.idle_cores, 2),
        }
        for side, start in starts.items()
    ]


def find_ratios(outcomes: Outcomes, starts: Mapping[str, Start], references: Sequence[Reference]) -> list[Ratio]:
    """Returns our figures relative to vllm-omni's, with equal limits and with the limits at which vllm-omni is best."""
    counts = sorted({count for _, count in outcomes})
    ratios = [
        Ratio(
            f"{figure} x vllm-omni at {limits} limits, {count} at once",
            round(median_ratio(outcomes[OURS, count].figure(figure), outcomes[side, count].figure(figure)), 3),
            at_most=bound if count == counts[-1] else None,
            goal=True,
            tolerance=TOLERANCE,
            lower_is_better=True,
        )
        for count in counts
        for figure, bound in BOUNDS.items()
        for limits, side in (("equal", EQUAL), ("its best", find_best(outcomes, figure, count)))
    ]
    theirs = min(start.seconds for side, start in starts.items() if side != OURS)
    started = round(starts[OURS].seconds / theirs, 3)
    ratios.append(Ratio("start x vllm-omni", started, tolerance=TOLERANCE, lower_is_better=True))
    expected = [each.codes for each in references[: counts[-1]]]
    rounds = outcomes[OURS, counts[-1]].rounds
    right = sum(count_equal(one.codes, expected) for one in rounds) / (len(rounds) * len(expected))
    ratios.append(Ratio("our codec tokens as transformers'", round(right, 3), at_least=1.0, tolerance=0))
    return ratios


def find_best(outcomes: Outcomes, figure: str, count: int) -> str:
    """Returns the vllm-omni side with the smallest median of a figure."""
    return min(LIMITS, key=lambda side: statistics.median(outcomes[side, count].figure(figure)))


def deployment(limits: Sequence[int]) -> Row:
    """Returns vllm-omni's deployment with these limits. All else is as in manifests/samples/tiny-omni.yaml."""
    stages: list[Row] = [
        {
            "stage_id": number,
            "max_num_batched_tokens": 2048,
            "max_model_len": 2048,
            "max_num_seqs": limit,
            "enforce_eager": True,
            "trust_remote_code": True,
            "enable_prefix_caching": False,
            "async_scheduling": False,
            "kv_cache_memory_bytes": 64 * 2**20,
            "devices": "0",
        }
        for number, limit in enumerate(limits)
    ]
    stages[0]["mm_processor_cache_gb"] = 0
    stages[2]["enable_flashinfer_autotune"] = False
    return {"async_chunk": False, "dtype": "float32", "stages": stages}


def _median(outcome: Outcome, figure: str) -> float:
    return round(statistics.median(outcome.figure(figure)), 3)
