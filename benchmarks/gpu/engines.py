"""Engines and pipelines for the checks: a tiny checkpoint, engine arguments beyond the user's, local pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.gpu.checks import Context
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import PlainProgress
from omni_proto.pipeline import OmniPipeline, load_pipeline

SAMPLES = Path(__file__).parents[2] / "manifests" / "samples"
SHARES = {"thinker": 0.4, "talker": 0.3, "token2wav": 0.25}
"""gpuMemoryUtilization of the tiny stages where they share a GPU."""


@cache
def tiny_checkpoint(directory: Path) -> Path:
    """The tiny checkpoint, written once below the folder of results' parent."""
    from omni_stage.models.qwen2_5_omni.tiny import write_tiny_checkpoint

    target = directory / "tiny-checkpoint"
    return target if (target / "config.json").exists() else write_tiny_checkpoint(target, 0, "small")


@contextmanager
def engine_arguments(**changes: Any) -> Iterator[None]:
    """Meanwhile, engines of this process are built with these arguments of vLLM's besides: graph modes and the like.

    They are no user's choice, so the product has no field for them; asynchronous scheduling takes its scheduler along.
    """
    from omni_stage.engine import vllm_engine
    from omni_stage.vllm_adapter.select import scheduler_cls

    original = vllm_engine.vllm_engine_kwargs

    def changed(args: Any, *, on_cpu: bool) -> dict[str, object]:
        kwargs = original(args, on_cpu=on_cpu) | changes
        if "async_scheduling" in changes and kwargs["runner"] == "generate":
            kwargs["scheduler_cls"] = scheduler_cls("autoregressive", bool(changes["async_scheduling"]))
        return kwargs

    vllm_engine.vllm_engine_kwargs = changed
    try:
        yield
    finally:
        vllm_engine.vllm_engine_kwargs = original


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Meanwhile, processes started here have these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def with_engine_args(pipeline: OmniPipeline, changes: Mapping[str, Mapping[str, Any]]) -> OmniPipeline:
    """The pipeline with other engineArgs (Python names) by stage."""
    stages = [
        stage.model_copy(update={"engine_args": stage.engine_args.model_copy(update=dict(changes.get(stage.name, {})))})
        for stage in pipeline.spec.stages
    ]
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages})})


def load_sample(context: Context, *, stream: bool = False) -> tuple[OmniPipeline, Path]:
    """The pipeline that a check serves, and its checkpoint: the published model if given, else the tiny one."""
    if context.model is not None:
        name = "qwen25-omni-3b" if "3b" in context.model.name.lower() else "qwen25-omni-one-gpu"
        return load_pipeline(SAMPLES / f"{name}.yaml"), context.model
    sample = load_pipeline(SAMPLES / ("tiny-omni.yaml" if stream else "tiny-omni-full.yaml"))
    if not context.on_gpu:
        return sample, tiny_checkpoint(context.out.parent)
    # On a GPU the tiny stages run as configured for it: with graphs, in a share each.
    shares = {name: {"gpu_memory_utilization": share, "enforce_eager": None} for name, share in SHARES.items()}
    return with_engine_args(sample, shares), tiny_checkpoint(context.out.parent)


class Seconds(PlainProgress):
    """Keeps how long each stage took to start; prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.by_stage: dict[str, float] = {}

    def loading(self, stage: str) -> None:
        """Nothing to note."""

    def ready(self, stage: str, seconds: float) -> None:
        """Note it."""
        self.by_stage[stage] = seconds


@contextmanager
def serve(
    context: Context, pipeline: OmniPipeline, checkpoint: Path, name: str
) -> Iterator[tuple[LocalPipeline, Seconds]]:
    """Stage servers of a pipeline, ready; their logs go to the results."""
    logs = context.out / "logs" / name
    logs.mkdir(parents=True, exist_ok=True)
    seconds = Seconds()
    options = LocalOptions(model_path=str(checkpoint), log_dir=logs, start_timeout_s=1800)
    with LocalPipeline(pipeline, options) as local:
        local.start(seconds)
        yield local, seconds


def gpu_memory_by_process() -> dict[int, int]:
    """Process id -> bytes on GPU 0, as the driver counts (the contexts included); empty where it does not say."""
    from vllm.utils.import_utils import import_pynvml

    nvml = import_pynvml()
    nvml.nvmlInit()
    try:
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(device)
        return {one.pid: one.usedGpuMemory or 0 for one in processes}
    finally:
        nvml.nvmlShutdown()


def gpu_memory_by_stage(local: LocalPipeline) -> dict[str, int]:
    """Stage -> bytes on GPU 0 of its stage server and all that descends from it."""
    used = gpu_memory_by_process()
    return {process.name: sum(used.get(one.pid, 0) for one in process.list_tree()) for process in local._processes}


def wait_until(condition: Any, seconds: float) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
