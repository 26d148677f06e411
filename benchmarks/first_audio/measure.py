"""Compares first audio and playback of a tiny Qwen2.5-Omni with Stream edges, with Full edges and in transformers."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.first_audio.families import QWEN25, Family
from benchmarks.first_audio.serving import Heard, ask
from benchmarks.harness.interleave import take_turns
from benchmarks.harness.report import Options, Report, Row
from benchmarks.harness.verdict import Ratio
from benchmarks.pipeline.sides import Answer, Reference, start_pipeline, write_checkpoint
from benchmarks.pipeline.work import PROMPTS
from omni_cli.local.pipeline import LocalPipeline
from omni_proto.client import AsyncOmniClient

SECONDS = (2, 8, 30)
"""Seconds of audio that requests ask for."""
ROUNDS = {2: 3, 8: 3, 30: 1}
"""Rounds by seconds of audio. A round of short requests takes little time, and its first audio varies most."""
REFERENCE = "transformers"
HEARD, WINDOWS = "what listeners hear", "windows against all codec tokens at once"
TOLERANCE = 0.3
"""It is large, because the processes of all sides share the cores."""
NOTES = (
    "The sample's engines run 8 requests at a time; further ones wait in their queues.",
    "Gaps: how often a player that starts with the first chunk has nothing to play. Silence: the seconds of all gaps "
    "of an answer, median. Full has no gaps, because it waits before it starts. `waited` is first audio plus silence.",
    "Cold: the first round with these requests, which counts apart.",
)


def measure(options: Options) -> Report:
    """Measure Full and Stream pipelines of Qwen2.5-Omni and transformers, and then the error of decoding in windows."""
    heard = hear(QWEN25, options.rounds)
    windows = list(_window_rows())
    ratios = [*find_ratios(heard, QWEN25), *find_window_ratios(windows)]
    return Report({HEARD: heard, WINDOWS: windows}, ratios, [*QWEN25.notes, *NOTES])


def hear(family: Family, rounds: int | None) -> list[Row]:
    """Returns a row for each side, number of concurrent requests and length. `rounds`: None for ROUNDS.

    All sides run the whole time, and get requests in turn.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        checkpoint = Path(folder) / "model"
        write_checkpoint(checkpoint, family.name)
        locals_ = {
            name: stack.enter_context(start_pipeline(side.sample, checkpoint, mode=side.mode))
            for name, side in family.sides.items()
        }
        reference = Reference(checkpoint, family.name)
        stack.callback(reference.close)
        return asyncio.run(_ask_all(family, locals_, reference, rounds))


async def _ask_all(
    family: Family, locals_: Mapping[str, LocalPipeline], reference: Reference, rounds: int | None
) -> list[Row]:
    clients = {name: AsyncOmniClient(local.endpoint) for name, local in locals_.items()}
    for client in clients.values():
        await ask(client, 1, family.sampling(1))
    rows = []
    for seconds in SECONDS:
        for count in family.at_once:
            cold = {name: await ask(client, count, family.sampling(seconds)) for name, client in clients.items()}
            heard: dict[str, list[Heard]] = {name: [] for name in clients}
            spans: dict[str, list[float]] = {name: [] for name in clients}
            for number in range(rounds or ROUNDS[seconds]):
                for name in take_turns(list(clients), number):
                    answers = await ask(clients[name], count, family.sampling(seconds))
                    heard[name] += answers
                    spans[name].append(max(answer.done for answer in answers))
            rows += [
                heard_row(name, count, seconds, heard[name], spans[name])
                | {"cold_first_audio_s_p50": _first(cold[name])}
                for name in clients
            ]
            if count == 1:  # transformers answers one request after another
                answered = await reference.ask(PROMPTS[:1], round(seconds * family.codes_per_second))
                rows.append(reference_row(count, seconds, answered, family.codes_per_second))
    for client in clients.values():
        await client.close()
    return rows


def heard_row(name: str, count: int, seconds: float, heard: list[Heard], spans: list[float]) -> Row:
    """Returns the row of one side, number of concurrent requests and length.

    `spans`: for each round, the seconds until all requests were done.
    """
    playbacks = [answer.playback for answer in heard]
    audio = sum(playback.audio for playback in playbacks)
    return {
        "side": name,
        "at_once": count,
        "audio_s": seconds,
        "first_audio_s_p50": _first(heard),
        "job_s_p50": round(statistics.median(answer.done for answer in heard), 3),
        "gaps": sum(item.gaps for item in playbacks),
        "silence_s_p50": round(statistics.median(item.silence for item in playbacks), 2),
        "waited_s_p50": round(statistics.median(item.first + item.silence for item in playbacks), 2),
        "clicks": sum(answer.clicks for answer in heard),
        "audio_s_per_s": round(audio / sum(spans), 2),
    }


def _first(heard: list[Heard]) -> float:
    return round(statistics.median(answer.playback.first for answer in heard), 3)


def reference_row(count: int, seconds: float, answers: list[Answer], codes_per_second: float) -> Row:
    """Returns the row of transformers, which returns audio only when it is complete."""
    done = statistics.median(answer.done for answer in answers)
    audio = sum(answer.tokens["talker"] for answer in answers) / codes_per_second
    return {
        "side": REFERENCE,
        "at_once": count,
        "audio_s": seconds,
        "first_audio_s_p50": round(done, 3),
        "job_s_p50": round(done, 3),
        "gaps": 0,
        "silence_s_p50": 0.0,
        "waited_s_p50": round(done, 2),
        "clicks": 0,
        "cold_first_audio_s_p50": None,
        "audio_s_per_s": round(audio / max(answer.done for answer in answers), 2),
    }


def find_ratios(rows: list[Row], family: Family) -> list[Ratio]:
    """Returns the ratios of Stream to Full.

    They are first audio, audio per second with 8 concurrent requests, and first audio plus silence with one request.
    """
    by_key = {(row["side"], row["at_once"], row["audio_s"]): row for row in rows}
    ratios: list[Ratio] = []
    found: list[tuple[str, float, dict[str, Any]]]
    for (side, count, seconds), row in by_key.items():
        full = by_key.get(("Full", count, seconds))
        if side != "Stream" or full is None:
            continue
        least, most = (family.speed, family.ratio) if seconds >= 8 else (None, None)
        first, whole = row["first_audio_s_p50"], full["first_audio_s_p50"]
        found = [("first audio", first / whole, {"at_most": most, "goal": True, "lower_is_better": True})]
        if count == 8:
            speed = row["audio_s_per_s"] / full["audio_s_per_s"]
            found.append(("audio a second", speed, {"at_least": least, "goal": True}))
        if count == 1:
            found.append(("first audio and silence", row["waited_s_p50"] / whole, {"at_most": 1.0}))
        for what, value, bounds in found:
            name = f"{what}, Stream x Full, {count} at once, {seconds} s of audio"
            ratios.append(Ratio(name, round(value, 3), tolerance=TOLERANCE, **bounds))
    return ratios


def find_window_ratios(rows: list[Row]) -> list[Ratio]:
    """Returns the windows' error relative to the difference between two seeds, as a factor: 0.01 is -40 dB."""
    return [
        Ratio(f"error of windows, {row['shape']}", round(10 ** (row["error_db_of_another_seed"] / 20), 5), at_most=0.01)
        for row in rows
    ]


def _window_rows() -> Iterator[Row]:
    from benchmarks.first_audio.windows import measure_windows
    from support.models.wave_models import make_wave_model, make_wave_voices

    models = {name: make_wave_model(name) for name in ("published depth", "small blocks")}
    yield from measure_windows(models, make_wave_voices(models["published depth"], "a"))
