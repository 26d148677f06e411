"""Checks stage servers on a GPU: how long they take to start, how fast they answer, and how they handle faults."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.gpu.checks import Context, Finding, at_most, equal
from benchmarks.gpu.environment import nvidia_files
from benchmarks.gpu.stages.engines import (
    PATCHED,
    environment,
    gpu_memory_by_process,
    gpu_memory_by_stage,
    load_sample,
    serve,
    wait_until,
)
from omni_cli.local.pipeline import LocalPipeline
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import ExitCode

START_LIMIT_S = 1800.0
"""Seconds in which a stage with one GPU must be ready: the startup probe allows no more."""
AT_ONCE = (1, 8, 32, 64)
PROMPT = "Tell me in three sentences what the weather is like."
DRAWN_AT_ONCE = (1, 8, 32)
_DRAWN_SECONDS = 10
_DRAWN_WORDS = 64
"""Models with random weights do not end their replies sensibly, so the lengths are fixed."""
_CODES_A_SECOND = {"qwen2_5_omni": 50.0, "qwen3_omni": 12.5}
_COMPILED = re.compile(r"during inference: (.+?)\. This causes")
"""What vLLM's JIT monitor logs for a kernel."""
ASSERT_SEED, OOM_SEED = 1_000_001, 1_000_002


def start(context: Context) -> Iterator[Finding]:
    """Starts the stages cold, and then warm from the caches of the cold start.

    Reports seconds and memory once they are ready, and checks that no stage server has a CUDA context.
    """
    pipeline, checkpoint = load_sample(context)
    caches = tempfile.mkdtemp(prefix="omni-gpu-caches-")
    variables = {"VLLM_CACHE_ROOT": f"{caches}/vllm", "TRITON_CACHE_DIR": f"{caches}/triton"}
    variables |= {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor"}
    try:
        for round_name in ("cold", "warm"):
            with environment(**variables), serve(context, pipeline, checkpoint, f"start-{round_name}") as running:
                local, seconds = running
                memory = gpu_memory_by_stage(local) if context.on_gpu else {}
                for stage, taken in seconds.by_stage.items():
                    data = {"seconds": taken, "gpu_bytes": memory.get(stage, 0)}
                    yield at_most(taken, START_LIMIT_S, name=f"{round_name}.{stage}", unit="s", data=data)
                if round_name == "warm":
                    yield _no_cuda(context, [process.session for process in local._processes])
    finally:
        shutil.rmtree(caches, ignore_errors=True)


def _no_cuda(context: Context, servers: list[int]) -> Finding:
    if not context.on_gpu:
        return Finding("", name="server_without_cuda", skipped="needs a GPU")
    # NVML lists the processes that have a context. An open /dev/nvidia-uvm is no proof of a context: on an H100 it was
    # open without one.
    holders = sorted(set(servers) & set(gpu_memory_by_process()))
    opened = sorted({file for pid in servers for file in nvidia_files(pid)})
    words = f"{len(holders)} of {len(servers)} servers"
    return Finding(words, "none has a context", ok=not holders, name="server_without_cuda", data={"files": opened})


def speed(context: Context) -> Iterator[Finding]:
    """Sends 1, 8, 32 and 64 concurrent requests, but at most 32 if the weights are random. Each level runs three times:
    right after the stages are ready ("cold"), after all levels ("warm"), and without seeds, since vLLM's V1 sampler
    draws for each seeded request by itself.

    Reports first audio, real-time factor, the GPU's idle share and the load of the stage servers' event loops. Fails if
    a stage compiled a kernel after it was ready.
    """
    pipeline, checkpoint = load_sample(context, stream=True)
    with serve(context, pipeline, checkpoint, "speed", drawn=context.shaped) as (local, seconds_to_start):
        before = gpu_memory_by_stage(local)
        for way, count in product(("cold", "warm", "unseeded"), DRAWN_AT_ONCE if context.shaped else AT_ONCE):
            yield measure_level(context, local, f"{count}_at_once.{way}", count, seeded=way != "unseeded")
        compiled = _compiled_kernels(context.out / "logs" / "speed")
        yield Finding(", ".join(compiled) or "none", "none", ok=not compiled, name="compiled_after_ready")
        for stage, used in gpu_memory_by_stage(local).items():
            data = {"started_bytes": before[stage], "bytes": used, "start_seconds": seconds_to_start.by_stage[stage]}
            yield Finding(f"{used / (1 << 30):.1f} GiB", name=f"memory.{stage}", data=data)


def measure_level(context: Context, local: LocalPipeline, name: str, count: int, *, seeded: bool = True) -> Finding:
    """Sends `count` requests at once to a running pipeline. Returns first audio, the talker's step and the load."""
    limits = _drawn_limits(local.pipeline) if context.shaped else {}
    busy = _Busy({process.name: process.session for process in local._processes})
    with busy:
        answers = asyncio.run(_ask(local.endpoint, count, limits, seeded=seeded))
    seconds = max(answer["done"] for answer in answers)
    audio = sum(answer["audio_s"] for answer in answers)
    firsts = sorted(answer["first_audio"] for answer in answers)
    data = {
        "first_audio_s": statistics.median(firsts),
        "first_audio_by_request_s": firsts,
        "step_ms": statistics.median(answer["talker_step_ms"] for answer in answers),
        "rtf": seconds / max(audio, 1e-9),
        "gpu_idle_percent": busy.gpu_idle_percent,
        "loop_load": busy.loads,
    }
    context.say(f"{name}: {data}")
    words = (
        f"step {data['step_ms']:.1f} ms, first audio {data['first_audio_s']:.2f} s, RTF {data['rtf']:.3f}, GPU idle "
        f"{busy.gpu_idle_percent} %, busiest loop {max(busy.loads.values(), default=0):.2f}"
    )
    return Finding(words, "all answered", ok=all(answer["audio_s"] > 0 for answer in answers), name=name, data=data)


def _compiled_kernels(logs: Path) -> list[str]:
    """Returns STAGE: KERNEL for each kernel that a stage compiled after it was ready, as its log says."""
    found = []
    for log in sorted(logs.glob("*.log")):
        lines = log.read_text(errors="replace").splitlines()
        found += [f"{log.stem}: {match[1]}" for line in lines if (match := _COMPILED.search(line))]
    return found


def _drawn_limits(pipeline: OmniPipeline) -> dict[str, dict[str, int | bool]]:
    """Returns sampling by stage for random weights: a fixed number of text tokens and of seconds of speech."""
    family = pipeline.spec.stages[0].component.split("/")[0]
    codes = int(_DRAWN_SECONDS * _CODES_A_SECOND[family])
    lengths = (_DRAWN_WORDS, codes)
    # The last stage decodes all codes that it gets, so it has no limit.
    stages = [stage.name for stage in pipeline.spec.stages][: len(lengths)]
    return {name: {"max_tokens": count, "ignore_eos": True} for name, count in zip(stages, lengths, strict=True)}


async def _ask(
    endpoint: str, count: int, sampling: Mapping[str, Mapping[str, int | bool]], *, seeded: bool
) -> list[dict[str, float]]:
    from omni_proto.client import AsyncOmniClient, AudioChunk, StageFinished

    began = time.perf_counter()

    async def one(client: AsyncOmniClient, index: int) -> dict[str, float]:
        answer = {"first_audio": 0.0, "audio_s": 0.0, "talker_step_ms": 0.0}
        seed = index if seeded else None
        async for event in client.generate(text=f"{PROMPT} {index}", seed=seed, sampling=sampling, timeout=600):
            if isinstance(event, AudioChunk):
                answer["first_audio"] = answer["first_audio"] or time.perf_counter() - began
            elif isinstance(event, StageFinished):
                timings, usage = event.timings, event.usage
                answer["audio_s"] += usage.audio_samples / 24_000
                if event.stage == "talker" and usage.completion_tokens > 1:
                    span = timings.last_output_ns - timings.first_output_ns
                    answer["talker_step_ms"] = span / 1e6 / (usage.completion_tokens - 1)
        answer["done"] = time.perf_counter() - began
        return answer

    async with AsyncOmniClient(endpoint) as client:
        return list(await asyncio.gather(*(one(client, index) for index in range(count))))


class _Busy:
    """Measures how busy GPU 0 and each stage server's process are while a `with` block runs."""

    def __init__(self, servers: dict[str, int]) -> None:
        self._servers = servers
        self._stop = threading.Event()
        self._samples: list[int] = []
        self.loads: dict[str, float] = {}
        """Stage -> CPU seconds of its server per second. The event loop's thread uses nearly all of them."""

    @property
    def gpu_idle_percent(self) -> float | None:
        """The GPU's idle share by NVML's samples; None if the block ended before the first sample."""
        return round(100 - statistics.mean(self._samples), 1) if self._samples else None

    def __enter__(self) -> None:
        self._began, self._before = time.monotonic(), self._cpu()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        passed = time.monotonic() - self._began
        self.loads = {stage: (now - self._before[stage]) / passed for stage, now in self._cpu().items()}

    def _cpu(self) -> dict[str, float]:
        import psutil

        times = {stage: psutil.Process(pid).cpu_times() for stage, pid in self._servers.items()}
        return {stage: one.user + one.system for stage, one in times.items()}

    def _watch(self) -> None:
        from vllm.utils.import_utils import import_pynvml

        nvml: Any = import_pynvml()
        nvml.nvmlInit()
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(0)
            while not self._stop.wait(0.1):
                self._samples.append(nvml.nvmlDeviceGetUtilizationRates(device).gpu)
        finally:
            nvml.nvmlShutdown()


def faults(context: Context) -> Iterator[Finding]:
    """Checks how a stage handles faults.

    A lack of memory must fail only one request. A device-side assertion must end the stage with exit code ENGINE_DEAD,
    and the pipeline must start again after it.
    """
    pipeline, checkpoint = load_sample(context)
    with environment(PYTHONPATH=f"{PATCHED}:{os.environ.get('PYTHONPATH', '')}"):
        with serve(context, pipeline, checkpoint, "faults") as (local, _):
            yield equal(asyncio.run(_code(local.endpoint, OOM_SEED)), "INTERNAL", name="out_of_memory")
            yield equal(asyncio.run(_code(local.endpoint, 7)), "OK", name="the_next_request")
            if not context.on_gpu:
                yield Finding("", name="device_assertion", skipped="needs a GPU")
                return
            token2wav = next(process for process in local._processes if process.name == "token2wav")
            yield equal(asyncio.run(_code(local.endpoint, ASSERT_SEED)), "UNAVAILABLE", name="device_assertion.call")
            ended = wait_until(lambda: token2wav.poll() is not None, 30)
            yield equal(token2wav.poll() if ended else "runs", int(ExitCode.ENGINE_DEAD), name="device_assertion.exit")
        with serve(context, pipeline, checkpoint, "faults-again") as (local, _):
            yield equal(asyncio.run(_code(local.endpoint, 7)), "OK", name="restarted")


async def _code(endpoint: str, seed: int) -> str:
    """Returns the gRPC code that a request with this seed ends with."""
    from omni_proto.client import AsyncOmniClient, OmniRequestError

    async with AsyncOmniClient(endpoint) as client:
        try:
            await client.run(text=PROMPT, seed=seed, timeout=300)
        except OmniRequestError as error:
            return str(error.code.name)
    return "OK"
