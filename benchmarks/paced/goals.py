"""Computes first audio of one H200 in virtual time, with the steps that were recorded and with improved ones.

Each goal stands beside the floor: the least that the card allows, from bytes and operations of the published shapes.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.harness.report import Row
from benchmarks.harness.verdict import Ratio
from benchmarks.paced.ideal import longest_gap, run_ideal
from omni_proto.pipeline import load_pipeline
from omni_stage.models.sim.engine import DEFAULT_STEP_TOKENS
from omni_stage.models.sim.tables import BUILT_IN, AudioShape, Table, read_table

H200: Final = "qwen3-omni-30b-a3b-h200"
SAMPLE: Final = Path(__file__).parents[2] / "manifests" / "samples" / "qwen3-omni-30b-a3b.yaml"
"""The steps of thinker and talker hold as many tokens as this sample's: fewer than vLLM's default, so that no listener
waits long for a step that reads others' prompts."""
FLOOR_MS: Final = {1: 17, 8: 22, 32: 31, 64: 50}
"""Concurrent requests -> the least milliseconds to first audio on an H200: the bytes of weights, of used experts and of
KV cache at 4.3 TB/s, or the operations at 790 TFLOP/s, in all stages, for prompts of 69 tokens."""
_FRAMES, _PROMPT, _TEXT = 125, 69, 128
_CODE2WAV_FRAME_MS: Final = {1: 0.2, 8: 0.84, 32: 2.98, 64: 6.29}


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of talker and code2wav, and first audio that they should allow."""

    name: str
    talker_ms: Mapping[int, float]
    code2wav_ms: Mapping[int, float]
    code2wav_least_ms: float
    goals_ms: Mapping[int, float]
    """Concurrent requests -> upper bound of the median first audio; empty if there is none."""

    def table(self, most_frames: int = 64) -> Table:
        """Returns the H200's table with these steps. With `most_frames` 1, code2wav runs each frame by itself."""
        base = read_table(BUILT_IN / H200)
        decoder = AudioShape(
            frame_ms=dict(self.code2wav_ms),
            least_ms=self.code2wav_least_ms,
            first_frames=1,
            next_frames=1,
            most_frames=most_frames,
        )
        talker = base.talker.model_copy(update={"step_ms": dict(self.talker_ms), "seconds_per_text_token": 0.08})
        return base.model_copy(update={"talker": talker, "decoder": decoder})


CASES: Final = (
    Steps(
        "recorded, nothing captured",
        {1: 108.3, 8: 137.5, 32: 155.6},
        {1: 9.0, 8: 9.64, 32: 11.02, 64: 16.56},
        9.0,
        {},
    ),
    Steps(
        "layers and predictor as CUDA graphs",
        {1: 18, 8: 19, 32: 20, 64: 22},
        _CODE2WAV_FRAME_MS,
        9.0,
        {1: 55, 8: 145, 32: 350, 64: 700},
    ),
    Steps(
        "predictor fused, code2wav as CUDA graphs",
        {1: 6, 8: 7, 32: 8, 64: 10},
        _CODE2WAV_FRAME_MS,
        2.0,
        {1: 35, 8: 115, 32: 330, 64: 600},
    ),
)


def goal_rows(counts: Sequence[int] = tuple(FLOOR_MS)) -> tuple[list[Row], list[Ratio]]:
    """Returns first audio of every case and number of concurrent requests, and the ratios that are judged.

    Each request has a prompt of 69 tokens, and 10 s of speech. All of them come together.
    """
    step_tokens = load_pipeline(SAMPLE).spec.stages[0].engine_args.max_num_batched_tokens or DEFAULT_STEP_TOKENS
    rows: list[Row] = []
    ratios: list[Ratio] = []
    for case in CASES:
        for count in counts:
            heard = {most: _run(case.table(most), count, step_tokens) for most in (1, 64)}
            first, asked, silent = heard[64]
            goal = case.goals_ms.get(count)
            rows.append(
                {
                    "steps": case.name,
                    "at once": count,
                    "first audio ms": first,
                    "with single frames ms": heard[1][0],
                    "goal ms": goal,
                    "floor ms": FLOOR_MS[count],
                    "code2wav requests per audio second": asked,
                    "with single frames": heard[1][1],
                    "listeners with gaps": silent,
                    "gaps with single frames": heard[1][2],
                }
            )
            if goal is not None:
                name = f"virtual time, {case.name}, {count} at once, ms"
                ratios.append(Ratio(name, first, at_most=goal, goal=True, tolerance=0.02))
    return rows, ratios


def _run(table: Table, count: int, step_tokens: int) -> tuple[float, float, int]:
    """Returns the median first audio in ms, code2wav's requests for each second of audio, and listeners with gaps."""
    outcomes = run_ideal(
        table,
        streams=True,
        prompt_tokens=_PROMPT,
        text_tokens=_TEXT,
        frames=_FRAMES,
        starts=[0.0] * count,
        step_tokens=step_tokens,
    )
    seconds = count * _FRAMES / table.talker.frames_per_second
    first = statistics.median(outcome.first_audio for outcome in outcomes) * 1000
    asked = sum(len(outcome.chunks) for outcome in outcomes) / seconds
    return round(first, 1), round(asked, 2), sum(longest_gap(outcome.chunks) > 0.02 for outcome in outcomes)
