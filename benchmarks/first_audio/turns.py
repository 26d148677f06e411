"""Measures what a turn of a long call costs: a ten-minute call of 20 turns, with earlier turns cached and without, and
in vLLM's own engine alone."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import os
import tempfile
import time
import wave
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.first_audio.stock_turns import STOCK, measure_stock
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.pipeline.sides import ROOT
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import make_progress
from omni_proto.client import AsyncOmniClient, AudioChunk, StageFinished, TextDelta
from omni_proto.client.prompt import ChatMessage, assistant, audio_part, user
from omni_proto.pipeline import OmniPipeline, load_pipeline
from omni_stage.decoding.resample import resample
from omni_stage.models.qwen3_omni.tiny import write_tiny_checkpoint
from omni_stage.models.qwen3_omni.tiny.shapes import TinyShape
from omni_stage.models.shared.prompts import AUDIO_RATE_HZ

__all__ = ["ARGUMENTS", "SECONDS", "TITLE", "growth", "hold_call", "measure", "run"]

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
STOCK_ARGUMENTS = {
    "dtype": "float32",
    "max_model_len": ARGUMENTS["max_model_len"],
    "kv_cache_memory_bytes": ARGUMENTS["kv_cache_memory_mib"] << 20,
    "mm_processor_cache_gb": CACHE_MIB / 1024,
    "max_num_seqs": 8,
    "enforce_eager": True,
}
"""What SIDES["cached"] and the sample's file give the thinker, by vLLM's names. It caches prefixes by default."""
REPLY_TOKENS = 32
WARM_UP = (TURNS + 1, TURNS + 2)
"""Seeds of the audio of a first call, of two turns."""
SAMPLING: Mapping[str, Mapping[str, Any]] = {
    "thinker": {"temperature": 0, "max_tokens": REPLY_TOKENS, "ignore_eos": True},
    "talker": {"temperature": 0.9, "max_tokens": 8, "ignore_eos": True},
}
FIRST_TEXT = ("prepared_s", "thinker_s")
TITLE = "turns of a ten-minute call"


def measure(options: Options) -> Report:
    """Returns first audio, its parts and the computed prompt tokens by turn, and ratios of the last to the first."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    replies: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        write_tiny_checkpoint(Path(folder), shape=SHAPE, dtype="float32")
        rows: list[Row] = []
        for side, arguments in SIDES.items():
            with _start(Path(folder), arguments) as local:
                rows += asyncio.run(hold_call(side, local, replies, _audio))
        rows += _run_stock(Path(folder), replies)
    ratios = [
        growth(rows, "first audio", "cached", ("first_audio_s",), goal=1.2),
        growth(rows, "first audio", "computed", ("first_audio_s",)),
        growth(rows, "first text", "cached", FIRST_TEXT),
        growth(rows, "first text", STOCK, FIRST_TEXT),
        Ratio(
            f"first text, turn {TURNS}, cached x {STOCK}",
            round(_sum(rows, "cached", TURNS, FIRST_TEXT) / _sum(rows, STOCK, TURNS, FIRST_TEXT), 2),
            tolerance=0.5,
            lower_is_better=True,
        ),
    ]
    notes = [
        f"A seeded Qwen3-Omni of a few million weights in float32 on a CPU. Each turn adds {SECONDS} s of audio and "
        f"{REPLY_TOKENS} tokens of reply; every request holds the whole call so far.",
        f"Cached: prefixes, as by default, and processed media (`mmProcessorCacheMib: {CACHE_MIB}`). Computed: "
        "`enablePrefixCaching: false` in thinker and talker. The sides run one after the other, with the same call.",
        f"{STOCK}: vLLM's own AsyncLLM with the same thinker, caches and call, given decoded audio: the floor of a "
        "turn on this machine, since the attention of new tokens reads the whole call.",
        "prepared_s: until the thinker's engine has the prompt; thinker_s and talker_s: from the prompt to the first "
        "output; first text: prepared_s + thinker_s; sent_mib: what the thinker sends the talker.",
    ]
    return Report({TITLE: rows}, ratios, notes)


def growth(rows: list[Row], what: str, side: str, names: Collection[str], goal: float | None = None) -> Ratio:
    """Returns the last turn's seconds, the sum of these columns, over the first turn's."""
    return Ratio(
        f"{what}, turn {TURNS} x turn 1, {side}",
        round(_sum(rows, side, TURNS, names) / _sum(rows, side, 1, names), 2),
        at_most=goal,
        goal=True,
        tolerance=0.5,
        lower_is_better=True,
    )


def _sum(rows: list[Row], side: str, turn: int, names: Collection[str]) -> float:
    row = next(row for row in rows if (row["side"], row["turn"]) == (side, turn))
    return sum(float(row[name]) for name in names)


def _run_stock(checkpoint: Path, replies: list[str]) -> list[Row]:
    """Returns the rows of vLLM's own engine. The processes of this module's sides have ended."""
    clips = [resample(_tones(seed), RATE_HZ, AUDIO_RATE_HZ) for seed in (*range(1, TURNS + 1), *WARM_UP)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        arguments = checkpoint, STOCK_ARGUMENTS, clips, replies, SHOWN, REPLY_TOKENS
        return process.submit(_measure_stock, *arguments).result()


def _measure_stock(*arguments: Any) -> list[Row]:
    return asyncio.run(measure_stock(*arguments))


@contextmanager
def _start(checkpoint: Path, arguments: Mapping[str, Any]) -> Iterator[LocalPipeline]:
    pipeline = load_pipeline(ROOT / "manifests" / "samples" / "tiny-qwen3-omni.yaml")
    thinker, talker, _ = pipeline.spec.stages
    settings = thinker.engine_args.model_copy(update={**ARGUMENTS, **arguments})
    limits = thinker.limits.model_copy(update={"max_media_per_request": TURNS})
    thinker = thinker.model_copy(update={"engine_args": settings, "limits": limits})
    kept = {name: value for name, value in arguments.items() if name == "enable_prefix_caching"}
    talker = talker.model_copy(update={"engine_args": talker.engine_args.model_copy(update={**ARGUMENTS, **kept})})
    pipeline.spec.stages[:2] = thinker, talker
    with run(pipeline, checkpoint) as local:
        yield local


@contextmanager
def run(pipeline: OmniPipeline, model: Path) -> Iterator[LocalPipeline]:
    """Yields the pipeline with its stages ready. It ends with the block."""
    with LocalPipeline(pipeline, LocalOptions(model_path=str(model))) as local:
        with make_progress(Console(stderr=True), [stage.name for stage in pipeline.spec.stages]) as progress:
            local.start(progress)
        yield local


async def hold_call(
    side: str, local: LocalPipeline, replies: list[str], say: Callable[[int], ChatMessage]
) -> list[Row]:
    """Returns a row for each turn that is shown. A call without `replies` is held whole, and its replies are added to
    them; others repeat the turns that are shown. A first call, of two turns, warms up.

    `say` returns the user's message of a turn.
    """
    rows: list[Row] = []
    first_side = not replies
    async with AsyncOmniClient(local.endpoint) as client:
        for seed in WARM_UP:
            await _ask(client, [say(seed)])
        talk: list[ChatMessage] = []
        for turn in range(1, TURNS + 1):
            talk.append(say(turn))
            if first_side or turn in SHOWN:
                said, stages, first_s = await _ask(client, talk)
                rows.append({"side": side, "turn": turn, **_describe(stages), "first_audio_s": round(first_s, 3)})
                if first_side:
                    replies.append(said)
            talk.append(assistant(replies[turn - 1]))
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


def _audio(turn: int) -> ChatMessage:
    return user(audio_part(_speak(turn)))


def _speak(seed: int) -> bytes:
    """Returns `_tones` as a WAV file."""
    samples = (32767 * _tones(seed)).clip(-32768, 32767).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RATE_HZ)
        written.writeframes(samples.tobytes())
    return file.getvalue()


def _tones(seed: int) -> np.ndarray:
    """Returns syllables, float32 at RATE_HZ: tones of changing pitch and loudness, unlike for each seed."""
    generator = np.random.default_rng(seed)
    at = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    pitch = np.repeat(generator.uniform(100, 300, SECONDS * 4), RATE_HZ // 4)
    tones = 0.4 * np.sin(2 * np.pi * np.cumsum(pitch) / RATE_HZ) * np.abs(np.sin(2 * np.pi * 2 * at))
    return np.asarray(tones + 0.01 * generator.standard_normal(at.size), dtype=np.float32)
