"""Measures calls over /v1/realtime in front of engines with a GPU's timing, with OpenAI's client for Python.

First audio is compared with that of the same requests over gRPC, which take turns with the calls. A paced pipeline
hears nothing, so turns are texts: the silence that ends a spoken turn, and 64 ms of speech that interrupt an answer,
come on top. Then calls are idle; and 32 at once, after the turns of ten minutes, are dropped by their clients, drained
by the gateway, and bereft of a stage.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

import psutil

from benchmarks.gateway.serving import Served, serve_gateway
from benchmarks.harness.interleave import quantile
from benchmarks.harness.memory import rss_mib
from benchmarks.harness.report import Options, Report, Row, load
from benchmarks.harness.verdict import Ratio
from benchmarks.paced.serving import PROMPT, TEXT_TOKENS, connect, serve
from benchmarks.pipeline.sides import Pipeline
from benchmarks.realtime.calls import Call, open_calls
from omni_proto.client import AudioChunk, user
from omni_proto.pod_contract import StageMetric
from omni_proto.stage_config import EdgeMode
from omni_stage.models.sim.tables import BUILT_IN, read_table

TIMES, WINDOWS = "qwen3-omni-30b-a3b-h100", "qwen3-omni-30b-a3b-h200"
"""One H100's times, which vllm-omni published, with windows as this project's code2wav cuts them: the first frame at
once. vllm-omni's decoder waits for ten."""
GOAL_MS: Final = 350
CALLS, FAULTY, IDLE = 16, 32, 500
TURNS: Final = 20
"""Turns of a call before its fault: those of ten minutes, of which nobody waits for what is spoken."""
ROUNDS, IDLE_S = 5, 10.0
FREED_S: Final = 30.0
"""Time in which stages must be free after the last answer."""
CONFIG: Final = "realtime: {maxSessionsPerKey: 1024, maxSessions: 1024}\ndrainNoticeSeconds: 0\n"
SESSIONS: Final = "omni_gateway_realtime_sessions"
FIRST, REST = "first audio", "calls"


def measure(options: Options) -> Report:
    """Returns first audio of calls and of gRPC, the cost of idle calls, and how calls end."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_table(folder)
        with serve(folder, EdgeMode.STREAM) as local:
            port = int(local.endpoint.rpartition(":")[2])
            return asyncio.run(_measure(connect(local), folder, port, options.rounds or ROUNDS))


def _write_table(folder: Path) -> None:
    times, windows = read_table(BUILT_IN / TIMES), read_table(BUILT_IN / WINDOWS).decoder
    decoder = windows.model_copy(update={"frame_ms": times.decoder.frame_ms, "least_ms": times.decoder.least_ms})
    table = times.model_copy(update={"decoder": decoder})
    (folder / "config.json").write_text(table.model_dump_json(by_alias=True), encoding="utf-8")


async def _measure(pipeline: Pipeline, folder: Path, port: int, rounds: int) -> Report:
    with serve_gateway(folder, port, CONFIG) as gateway:
        heard, added, interrupted, freed, rows = await _answers(pipeline, gateway, rounds)
        mib, share = await _idle(gateway)
        await _drop(gateway)
        await _wait_free(pipeline, gateway)
        before = rss_mib(gateway.processes["gateway"])
        endings = {"client gone": await _drop(gateway)}
        dropped_s = await _wait_free(pipeline, gateway)
        kept = round(rss_mib(gateway.processes["gateway"]) - before, 1)
    with serve_gateway(folder, port, CONFIG) as gateway:
        endings["gateway drained"] = await _drain(gateway)
    with serve_gateway(folder, port, CONFIG) as gateway:
        endings["stage killed"] = await _kill(pipeline, gateway)
    await pipeline.client.close()
    cases = [{"what": name, "endings": ", ".join(f"{count} x {one}" for one, count in found.items())}
             for name, found in endings.items()]  # fmt: skip
    rows += [{"what": f"{IDLE} idle calls, MiB", "value": mib}, {"what": f"{IDLE} idle calls, cores", "value": share}]
    rows += [{"what": "engines free after clients were gone, ms", "value": round(dropped_s * 1000)}]
    rows += [{"what": f"{FAULTY} calls of {TURNS} turns that are gone, MiB", "value": kept}]
    known = {"closed with 1001", "completed", "failed: service_unavailable"}
    unknown = sum(
        sum(found.values()) for name, found in endings.items() if name != "client gone" and set(found) - known
    )
    ratios = [
        Ratio(f"{CALLS} calls, first audio, median ms", heard, at_most=GOAL_MS, goal=True, tolerance=0.5),
        Ratio(f"{CALLS} calls, first audio, ms over gRPC", added, at_most=40, tolerance=1.0),
        Ratio("interruption to silence, p99 ms", interrupted, at_most=150, tolerance=1.0),
        Ratio("interruption to free engines, p99 ms", freed, at_most=1000, tolerance=1.0),
        Ratio(f"{IDLE} idle calls, MiB", mib, at_most=100, goal=True, tolerance=0.5),
        Ratio(f"{IDLE} idle calls, share of a core", share, at_most=0.05, goal=True, tolerance=1.0),
        Ratio("calls with an undocumented end", unknown, at_most=0),
        Ratio(f"{FAULTY} calls of {TURNS} turns that are gone, MiB", kept, at_most=16, tolerance=4.0),
    ]
    return Report({FIRST: rows, REST: cases}, ratios, [f"Load after the run: {load()}."])


async def _answers(pipeline: Pipeline, gateway: Served, rounds: int) -> tuple[float, float, float, float, list[Row]]:
    """Returns ms of first audio, ms over that of gRPC, p99 of ms to silence and to free engines, and rows."""
    direct, called, silent, freed = list[float](), list[float](), list[float](), list[float]()
    async with open_calls(gateway.port, CALLS) as calls:
        for number in range(rounds + 1):  # the first round is cold
            ours = await asyncio.gather(*(call.ask(PROMPT) for call in calls))
            ended = await asyncio.gather(*(call.interrupt() for call in calls))
            free_s = await _wait_free(pipeline, gateway, sessions=CALLS)
            theirs = await asyncio.gather(*(_ask_grpc(pipeline) for _ in calls))
            await _wait_free(pipeline, gateway, sessions=CALLS)
            if number:
                called, silent, direct, freed = called + ours, silent + ended, direct + theirs, [*freed, free_s]
    first, other = (1000 * statistics.median(one) for one in (called, direct))
    rows: list[Row] = [
        {"what": f"{CALLS} gRPC requests, first audio, median ms", "value": round(other, 1)},
    ]
    return round(first, 1), round(first - other, 1), _p99_ms(silent), _p99_ms(freed), rows


async def _ask_grpc(pipeline: Pipeline) -> float:
    sampling = {"thinker": {"max_tokens": TEXT_TOKENS}}
    began = time.perf_counter()
    async with aclosing(pipeline.client.generate(chat=user(PROMPT), sampling=sampling)) as events:
        async for event in events:
            if isinstance(event, AudioChunk) and event.data:
                return time.perf_counter() - began
    raise RuntimeError("the answer had no audio")


async def _idle(gateway: Served) -> tuple[float, float]:
    """Returns the MiB and the cores that idle calls take."""
    process = psutil.Process(gateway.processes["gateway"])
    before = rss_mib(process.pid)
    async with open_calls(gateway.port, IDLE):
        mib, spent = rss_mib(process.pid) - before, sum(process.cpu_times()[:2])
        await asyncio.sleep(IDLE_S)
        return round(mib, 1), round((sum(process.cpu_times()[:2]) - spent) / IDLE_S, 3)


async def _drop(gateway: Served) -> Counter[str]:
    async with open_calls(gateway.port, FAULTY) as calls:
        await _talk(calls)
        for call in calls:
            call.drop()
    return Counter(["the client's"] * FAULTY)


async def _drain(gateway: Served) -> Counter[str]:
    async with open_calls(gateway.port, FAULTY) as calls:
        await _talk(calls)
        os.kill(gateway.processes["gateway"], signal.SIGTERM)
        return Counter(await asyncio.gather(*map(Call.closing, calls)))


async def _kill(pipeline: Pipeline, gateway: Served) -> Counter[str]:
    async with open_calls(gateway.port, FAULTY) as calls:
        await _talk(calls)
        os.kill(pipeline.pids["talker"], signal.SIGKILL)
        return Counter(await asyncio.gather(*map(Call.ending, calls)))


async def _talk(calls: Sequence[Call]) -> None:
    """Hold the turns of ten minutes in each call, and begin a further answer."""
    await asyncio.gather(*(call.hold(PROMPT, TURNS) for call in calls))
    await asyncio.gather(*(call.ask(PROMPT, in_conversation=True) for call in calls))


async def _wait_free(pipeline: Pipeline, gateway: Served, sessions: int = 0) -> float:
    """Returns the seconds until no stage has a request and the gateway has only these sessions. Raises RuntimeError."""
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < FREED_S:
        ports = pipeline.metrics_ports.values()
        held = [await asyncio.to_thread(_read, one, StageMetric.INFLIGHT_REQUESTS) for one in ports]
        if not any(held) and await asyncio.to_thread(_read, gateway.port, SESSIONS) == sessions:
            return passed
        await asyncio.sleep(0.01)
    raise RuntimeError(f"after {FREED_S:g} s stages still hold requests, or the gateway sessions")


def _read(port: int, metric: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=FREED_S) as answer:
        text = answer.read().decode()
    return sum(float(one) for one in re.findall(rf"^{metric}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE))


def _p99_ms(seconds: Sequence[float]) -> float:
    return round(1000 * quantile(seconds, 0.99), 1)
