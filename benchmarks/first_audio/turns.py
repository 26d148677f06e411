"""Measures what a turn of a long call costs: a ten-minute call of 20 turns, with earlier turns cached and without."""

from __future__ import annotations

import asyncio
import io
import os
import tempfile
import time
import wave
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.pipeline.sides import ROOT
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import AsyncOmniClient, AudioChunk, StageFinished, TextDelta
from omni_proto.client.prompt import ChatMessage, assistant, audio_part, user
from omni_proto.pipeline import load_pipeline
from omni_stage.models.qwen3_omni.tiny import write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape

__all__ = ["measure"]

TURNS, SHOWN = 20, (1, 2, 5, 10, 20)
SECONDS = 20
"""Seconds of the user's audio in a turn. With replies of 10 s, 20 turns are a call of ten minutes."""
RATE_HZ = 24_000
"""As in calls. The thinker hears 16,000 Hz."""
CACHE_MIB = 64
SIDES: Mapping[str, Mapping[str, Any]] = {
    "cached": {"mm_processor_cache_mib": CACHE_MIB},
    "computed": {"enable_prefix_caching": False},
}
SHAPE = TinyShape(
    thinker_heads=16, thinker_kv_heads=4, thinker_layers=8, accept_hidden_layer=5, encoder_layers=4, groups=8
)
ARGUMENTS = {"max_model_len": 8192, "kv_cache_memory_mib": 128}
SAMPLING = {
    "thinker": {"temperature": 0, "max_tokens": 32, "ignore_eos": True},
    "talker": {"temperature": 0.9, "max_tokens": 8, "ignore_eos": True},
}
TITLE = "turns of a ten-minute call"


def measure(options: Options) -> Report:
    """Returns first audio, its parts and the computed prompt tokens by turn, and ratios of the last to the first."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    talk: list[ChatMessage] = []
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_checkpoint(Path(folder), shape=SHAPE, dtype="float32")
        rows: list[Row] = []
        for side, arguments in SIDES.items():
            with _start(Path(folder), arguments) as local:
                rows += asyncio.run(_call(side, local, talk))
    ratios = [
        Ratio(
            f"first audio, turn {TURNS} x turn 1, {side}",
            round(_find(rows, side, TURNS) / _find(rows, side, 1), 2),
            at_most=None if side == "computed" else 1.2,
            goal=True,
            tolerance=0.5,
            lower_is_better=True,
        )
        for side in SIDES
    ]
    notes = [
        f"A seeded Qwen3-Omni of a few million weights in float32 on a CPU. Each turn adds {SECONDS} s of audio and 32 "
        "tokens of reply; every request holds the whole call so far.",
        f"Cached: prefixes, as by default, and processed media (`mmProcessorCacheMib: {CACHE_MIB}`). Computed: "
        "`enablePrefixCaching: false` in thinker and talker. The sides run one after the other, with the same call.",
        "prepared_s: until the thinker's engine has the prompt; thinker_s and talker_s: from the prompt to the first "
        "output; sent_mib: what the thinker sends the talker.",
    ]
    return Report({TITLE: rows}, ratios, notes)


@contextmanager
def _start(checkpoint: Path, arguments: Mapping[str, Any]) -> Iterator[LocalPipeline]:
    pipeline = load_pipeline(ROOT / "manifests" / "samples" / "tiny-qwen3-omni.yaml")
    thinker, talker, decoder = pipeline.spec.stages
    settings = thinker.engine_args.model_copy(update={**ARGUMENTS, **arguments})
    limits = thinker.limits.model_copy(update={"max_media_per_request": TURNS})
    thinker = thinker.model_copy(update={"engine_args": settings, "limits": limits})
    kept = {name: value for name, value in arguments.items() if name == "enable_prefix_caching"}
    talker = talker.model_copy(update={"engine_args": talker.engine_args.model_copy(update={**ARGUMENTS, **kept})})
    spec = pipeline.spec.model_copy(update={"stages": [thinker, talker, decoder]})
    with LocalPipeline(pipeline.model_copy(update={"spec": spec}), LocalOptions(model_path=str(checkpoint))) as local:
        with make_progress(Console(stderr=True), [stage.name for stage in spec.stages]) as progress:
            local.start(progress)
        yield local


async def _call(side: str, local: LocalPipeline, talk: list[ChatMessage]) -> list[Row]:
    """Returns a row for each turn that is shown. The first side holds the whole call, which is added to `talk`; others
    repeat the turns that are shown. A first call, of two turns, warms up."""
    rows: list[Row] = []
    first_side = not talk
    async with AsyncOmniClient(local.endpoint) as client:
        for seed in (TURNS, TURNS + 1):
            await _ask(client, [user(audio_part(_speak(seed)))])
        for turn in range(1, TURNS + 1):
            if first_side:
                talk.append(user(audio_part(_speak(turn))))
            elif turn not in SHOWN:
                continue
            said, stages, first_s = await _ask(client, talk[: 2 * turn - 1])
            if first_side:
                talk.append(assistant(said))
            rows += [{"side": side, "turn": turn, **_describe(stages), "first_audio_s": round(first_s, 3)}]
    return [row for row in rows if row["turn"] in SHOWN]


def _describe(stages: Mapping[str, StageFinished]) -> Row:
    thinker, talker = stages["thinker"], stages["talker"]
    row: Row = {"prompt_tokens": thinker.usage.prompt_tokens}
    row["computed_tokens"] = thinker.usage.prompt_tokens - thinker.usage.cached_tokens
    row["talker_computed"] = talker.usage.prompt_tokens - talker.usage.cached_tokens
    row["sent_mib"] = round(thinker.usage.tensor_bytes_sent / 2**20, 1)
    row["prepared_s"] = round(thinker.timings.engine_submitted_ns / 1e9, 3)
    for name, times in (("thinker_s", thinker.timings), ("talker_s", talker.timings)):
        row[name] = round((times.first_output_ns - times.engine_submitted_ns) / 1e9, 3)
    return row


async def _ask(client: AsyncOmniClient, talk: list[ChatMessage]) -> tuple[str, dict[str, StageFinished], float]:
    """Returns the thinker's answer, how each stage finished, and the seconds to first audio."""
    began, first_s, said = time.perf_counter(), 0.0, ""
    stages: dict[str, StageFinished] = {}
    async for event in client.generate(chat=talk, sampling=SAMPLING, seed=1, timeout=900):
        if isinstance(event, AudioChunk):
            first_s = first_s or time.perf_counter() - began
        elif isinstance(event, TextDelta):
            said += event.text
        elif isinstance(event, StageFinished):
            stages[event.stage] = event
    return said, stages, first_s


def _speak(seed: int) -> bytes:
    """Returns a WAV file of syllables: tones of changing pitch and loudness, unlike for each seed."""
    generator = np.random.default_rng(seed)
    at = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    pitch = np.repeat(generator.uniform(100, 300, SECONDS * 4), RATE_HZ // 4)
    tones = 0.4 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE_HZ) * np.abs(np.sin(2 * np.pi * 2 * at))
    samples = (32767 * (tones + 0.01 * generator.standard_normal(at.size))).clip(-32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE_HZ)
        written.writeframes(samples.tobytes())
    return file.getvalue()


def _find(rows: list[Row], side: str, turn: int) -> float:
    return next(float(row["first_audio_s"]) for row in rows if (row["side"], row["turn"]) == (side, turn))
