"""`omnipipe bench`: load on a running pipeline at a rate, and what its listeners would have noticed."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from omni_proto.client import (
    AsyncOmniClient,
    AudioChunk,
    ClientTls,
    GenerateArguments,
    OmniRequestError,
    TextDelta,
)
from omni_proto.client.result import sample_bytes

PERCENTILES: Final = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the client of one request saw. Times in seconds since the request was due, so a late start counts."""

    start_s: float
    """When the request was due, in seconds since the first one."""
    total_s: float
    first_text_s: float | None = None
    first_audio_s: float | None = None
    audio_s: float = 0.0
    """Length of the audio."""
    silence_s: float = 0.0
    """Time for which a listener, who begins with the first chunk, had nothing to hear before the end."""
    error: str = ""
    """Code of the error; empty if the request succeeded."""


def measure_silence(chunks: Sequence[tuple[float, float]]) -> float:
    """Returns the silence in playback: of chunks (arrival, length) in seconds, played from the first arrival on."""
    silence, end = 0.0, chunks[0][0] if chunks else 0.0
    for arrival, length in chunks:
        silence += max(0.0, arrival - end)
        end = max(end, arrival) + length
    return silence


def list_starts(count: int, rate: float, seed: int) -> list[float]:
    """Returns when requests are due: at exponential intervals of the mean 1 / rate, as callers who do not know of one
    another arrive; with an infinite rate all at 0."""
    source = random.Random(seed)  # noqa: S311 - not for secrets
    starts, now = [], 0.0
    for _ in range(count):
        starts.append(now)
        now += source.expovariate(rate) if math.isfinite(rate) else 0.0
    return starts


def percentile(values: Sequence[float], share: int) -> float:
    """Returns the smallest value that at least `share` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns counts, rates and percentiles as a JSON object. Times in seconds."""
    good = [one for one in outcomes if not one.error]
    errors: dict[str, int] = {}
    for one in outcomes:
        if one.error:
            errors[one.error] = errors.get(one.error, 0) + 1
    spoken = [one for one in good if one.audio_s]
    columns = {
        "first_text_s": [one.first_text_s for one in good if one.first_text_s is not None],
        "first_audio_s": [one.first_audio_s for one in good if one.first_audio_s is not None],
        "total_s": [one.total_s for one in good],
        "real_time_factor": [one.total_s / one.audio_s for one in spoken],
        "silence_s": [one.silence_s for one in spoken],
    }
    lasted = max((one.start_s + one.total_s for one in outcomes), default=0.0)
    return {
        "requests": len(outcomes),
        "errors": errors,
        "duration_s": lasted,
        "requests_per_s": len(good) / lasted if lasted else 0.0,
        "audio_s_per_s": sum(one.audio_s for one in good) / lasted if lasted else 0.0,
        "uninterrupted": sum(one.silence_s == 0 for one in spoken) / len(spoken) if spoken else None,
        **{
            name: {
                "mean": sum(values) / len(values),
                **{f"p{share}": percentile(values, share) for share in PERCENTILES},
            }
            for name, values in columns.items()
            if values
        },
    }


async def run_load(
    endpoint: str, arguments: GenerateArguments, starts: Sequence[float], concurrency: int, tls: ClientTls | None
) -> list[Outcome]:
    """Send a request at each start, with at most `concurrency` at a time. Returns what came of each, in their order.

    Raises ArgumentError if the arguments can be sent by no request.
    """
    slots = asyncio.Semaphore(concurrency)
    async with AsyncOmniClient(endpoint, tls=tls) as client:
        begun = time.monotonic()

        async def one(start: float) -> Outcome:
            await asyncio.sleep(begun + start - time.monotonic())
            async with slots:
                return await _ask(client, arguments, begun, start)

        # gather, unlike a task group, raises a task's own error.
        return await asyncio.gather(*(one(start) for start in starts))


async def _ask(client: AsyncOmniClient, arguments: GenerateArguments, begun: float, start: float) -> Outcome:
    first_text: float | None = None
    chunks: list[tuple[float, float]] = []
    error = ""
    try:
        async for event in client.generate(**arguments):
            now = time.monotonic() - begun - start
            if isinstance(event, TextDelta) and first_text is None:
                first_text = now
            elif isinstance(event, AudioChunk) and event.data:
                frame = sample_bytes(event.encoding) * event.channels
                chunks.append((now, len(event.data) / frame / event.sample_rate_hz))
    except OmniRequestError as failure:
        error = failure.code.name
    return Outcome(
        start_s=start,
        total_s=time.monotonic() - begun - start,
        first_text_s=first_text,
        first_audio_s=chunks[0][0] if chunks else None,
        audio_s=sum(length for _, length in chunks),
        silence_s=measure_silence(chunks),
        error=error,
    )


def run_bench(
    endpoint: str,
    arguments: GenerateArguments,
    *,
    requests: int,
    rate: float,
    concurrency: int,
    tls: ClientTls | None = None,
) -> tuple[dict[str, Any], list[Outcome]]:
    """Returns the summary, and what came of each request. Raises ArgumentError."""
    starts = list_starts(requests, rate, seed=0)
    outcomes = asyncio.run(run_load(endpoint, arguments, starts, concurrency, tls))
    return summarize(outcomes), outcomes


def format_summary(summary: dict[str, Any]) -> str:
    """Returns the summary as a table for people."""
    errors = ", ".join(f"{count} {code}" for code, count in summary["errors"].items()) or "none"
    lines = [
        f"{summary['requests']} requests in {summary['duration_s']:.1f} s, {summary['requests_per_s']:.2f} per second; "
        f"errors: {errors}",
        f"{'':18}{'mean':>9}" + "".join(f"{f'p{share}':>9}" for share in PERCENTILES),
    ]
    names = {
        "first_text_s": "first text, s",
        "first_audio_s": "first audio, s",
        "total_s": "whole answer, s",
        "real_time_factor": "real-time factor",
        "silence_s": "silence, s",
    }
    for key, name in names.items():
        if row := summary.get(key):
            lines.append(f"{name:18}" + "".join(f"{value:9.3f}" for value in row.values()))
    if summary["uninterrupted"] is not None:
        lines.append(
            f"{summary['uninterrupted']:.1%} of the answers played without a gap; "
            f"{summary['audio_s_per_s']:.2f} s of audio per second"
        )
    return "\n".join(lines)


def write_run(outcomes: Sequence[Outcome], folder: Path, *, concurrency: int, begun_ns: int) -> None:
    """Write a run into a folder as AIPerf writes its own, so that `aiperf plot` and its readers take it.

    Source: schema 1.4 of NVIDIA AIPerf 0.13, docs/reference/json-export-schema.md. Its names for what we measure are
    used where it has one; first audio, audio and silence are metrics beside them. begun_ns: the wall clock, in
    nanoseconds since the epoch, at which the first request was due. Raises OSError.
    """
    lines = []
    columns: dict[str, list[float]] = {}
    for index, one in enumerate(outcomes):
        start_ns = begun_ns + round(one.start_s * 1e9)
        metrics = {} if one.error else _list_metrics(one)
        for name, value in metrics.items():
            columns.setdefault(name, []).append(value)
        record = {
            "metadata": {
                "session_num": index,
                "turn_index": 0,
                "request_start_ns": start_ns,
                "request_end_ns": start_ns + round(one.total_s * 1e9),
                "worker_id": "omnipipe",
                "record_processor_id": "omnipipe",
                "benchmark_phase": "profiling",
                "was_cancelled": False,
            },
            "metrics": {name: {"value": value, "unit": _METRICS[name]} for name, value in metrics.items()},
            "error": {"type": one.error, "message": f"the pipeline answered {one.error}"} if one.error else None,
        }
        lines.append(json.dumps(record) + "\n")
    summary = summarize(outcomes)
    failed = sum(summary["errors"].values())
    scalars = {
        "request_count": (len(outcomes) - failed, "requests"),
        "error_request_count": (failed, "requests"),
        "request_throughput": (summary["requests_per_s"], "requests/sec"),
        "benchmark_duration": (summary["duration_s"], "sec"),
        "audio_throughput": (summary["audio_s_per_s"], "audio_sec/sec"),
    }
    end_s = begun_ns / 1e9 + summary["duration_s"]
    whole = {
        "schema_version": "1.4",
        **{name: {"unit": _METRICS[name], **_describe(values)} for name, values in columns.items()},
        **{name: {"unit": unit, "avg": value} for name, (value, unit) in scalars.items()},
        "input_config": {
            "endpoint": {"type": "omnipipeline"},
            "loadgen": {"concurrency": concurrency, "request_count": len(outcomes)},
        },
        "was_cancelled": False,
        "error_summary": [
            {"error_details": {"type": code, "message": f"the pipeline answered {code}"}, "count": count}
            for code, count in summary["errors"].items()
        ],
        "start_time": datetime.fromtimestamp(begun_ns / 1e9, UTC).isoformat(),
        "end_time": datetime.fromtimestamp(end_s, UTC).isoformat(),
    }
    (folder / PROFILE).write_text("".join(lines), encoding="utf-8")
    (folder / "profile_export_aiperf.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


PROFILE: Final = "profile_export.jsonl"
"""AIPerf's name of the file with a line for each request."""
_METRICS: Final = {
    "request_latency": "ms",
    "time_to_first_token": "ms",
    "time_to_first_audio": "ms",
    "audio_duration": "sec",
    "audio_silence": "ms",
}
"""Units of a request's metrics in AIPerf's files."""


def _list_metrics(one: Outcome) -> dict[str, float]:
    first_text, first_audio = one.first_text_s, one.first_audio_s
    values = {
        "request_latency": one.total_s * 1e3,
        "time_to_first_token": None if first_text is None else first_text * 1e3,
        "time_to_first_audio": None if first_audio is None else first_audio * 1e3,
        "audio_duration": one.audio_s if one.audio_s else None,
        "audio_silence": one.silence_s * 1e3 if one.audio_s else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def _describe(values: Sequence[float]) -> dict[str, float]:
    shares = {f"p{share}": percentile(values, share) for share in (1, 5, 10, 25, 50, 75, 90, 95, 99)}
    ends = {"min": min(values), "max": max(values), "sum": sum(values), "count": len(values)}
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"avg": statistics.fmean(values), **shares, **ends, "std": spread}


def list_waits(outcomes: Sequence[Outcome]) -> dict[str, list[tuple[float, float]]]:
    """Returns what the requests that succeeded waited for: (when one was due, its wait) in seconds, by what it is."""
    good = [one for one in outcomes if not one.error]
    waits = {
        "first text": [(one.start_s, one.first_text_s) for one in good if one.first_text_s is not None],
        "first audio": [(one.start_s, one.first_audio_s) for one in good if one.first_audio_s is not None],
        "whole answer": [(one.start_s, one.total_s) for one in good],
    }
    return {name: points for name, points in waits.items() if points}


def write_json_lines(outcomes: Sequence[Outcome]) -> str:
    """Returns one JSON object per request, a line each."""
    return "".join(json.dumps(asdict(one)) + "\n" for one in outcomes)
