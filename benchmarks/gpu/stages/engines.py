"""Makes what the checks run: tiny checkpoints, engines with arguments that users cannot set, and local pipelines."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.gpu.checks import Context
from benchmarks.gpu.memory.sizes import DOCUMENTED
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_cli.local.progress import PlainProgress
from omni_proto.pipeline import OmniPipeline, load_pipeline
from omni_proto.stage_config import EdgeMode

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
PATCHED = Path(__file__).parents[1] / "patched"
"""Folder whose sitecustomize.py, if the folder is on PYTHONPATH, changes a stage's modules for the checks."""
SHARES = (0.2, 0.15, 0.12)
"""gpuMemoryUtilization of each tiny stage that shares a GPU, in the pipeline's order."""
FIRST_FAMILY = "qwen2_5_omni"


@cache
def tiny_checkpoint(directory: Path, family: str = FIRST_FAMILY) -> Path:
    """Returns a family's tiny checkpoint, tiny-FAMILY in the directory. Writes it if it is missing."""
    from omni_stage.models.registry import resolve, tiny_checkpoints

    tiny, target = tiny_checkpoints()[family], directory / f"tiny-{family}"
    if not (target / "model.safetensors.index.json").exists():
        write: Any = resolve(tiny.writer, what="the writer of the tiny model")
        write(target, seed=0, shape=tiny.shapes[0])
    return target


def find_sample(family: str) -> OmniPipeline:
    """Returns the sample that has only Stream edges and serves a family's tiny checkpoint. Raises ValueError if there
    is none."""
    for file in sorted(SAMPLES.glob("*.yaml")):
        pipeline = load_pipeline(file)
        uris = [pipeline.model_of(stage).uri for stage in pipeline.spec.stages]
        is_tiny = uris[0].startswith("file:///models/tiny") and len(set(uris)) == 1 and not pipeline.spec.entry.tls
        modes = {edge.mode for stage in pipeline.spec.stages for edge in stage.inputs}
        if is_tiny and modes == {EdgeMode.STREAM} and pipeline.spec.stages[0].component.split("/")[0] == family:
            return pipeline
    raise ValueError(f"manifests/samples has no streamed pipeline of {family}'s tiny checkpoint")


@contextmanager
def engine_arguments(**changes: Any) -> Iterator[None]:
    """In the block, engines of this process are built with these additional vLLM arguments, for example graph modes.

    Users cannot choose them, so the product has no field for them. async_scheduling also selects the scheduler class.
    """
    from omni_stage.engine import vllm_engine
    from omni_stage.vllm_adapter.wiring.names import scheduler_cls

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
    """In the block, this process and its new child processes have these environment variables."""
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


@contextmanager
def poisoned_padding(wanted: bool) -> Iterator[None]:
    """In the block, if `wanted`, the input rows of padding tokens are NaN. A computation that reads them then fails."""
    from omni_stage.vllm_adapter.ar.input_rows import InputRowStore

    original = InputRowStore.fill

    def fill(store: Any, spans: Any, num_input_tokens: int) -> None:
        original(store, spans, num_input_tokens)
        end = max((span.offset + span.length for span in spans), default=0)
        store.buffer[end:num_input_tokens] = torch.nan

    InputRowStore.fill = fill if wanted else original
    try:
        yield
    finally:
        InputRowStore.fill = original


def with_stages(pipeline: OmniPipeline, change: Callable[[Any, int], dict[str, Any]]) -> OmniPipeline:
    """Returns the pipeline with each stage updated by the fields that `change(stage, index)` returns."""
    stages = [stage.model_copy(update=change(stage, index)) for index, stage in enumerate(pipeline.spec.stages)]
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"stages": stages})})


def load_sample(context: Context, *, stream: bool = False) -> tuple[OmniPipeline, Path]:
    """Returns the pipeline that a check serves, and its checkpoint: the context's model if given, else the tiny one."""
    if context.model is not None:
        return load_pipeline(SAMPLES / f"{find_documented(context.model.name)}.yaml"), context.model
    sample = find_sample(context.family)
    if not stream:
        sample = with_stages(sample, lambda stage, _: {"inputs": [_full(edge) for edge in stage.inputs]})
    if not context.on_gpu:
        return sample, tiny_checkpoint(context.out.parent, context.family)

    # On a GPU, the tiny stages run as on a user's GPU: with CUDA graphs, and each in its share of the memory.
    def shared(stage: Any, index: int) -> dict[str, Any]:
        changes = {"gpu_memory_utilization": SHARES[index], "enforce_eager": None}
        return {"engine_args": stage.engine_args.model_copy(update=changes)}

    return with_stages(sample, shared), tiny_checkpoint(context.out.parent, context.family)


def _full(edge: Any) -> Any:
    return edge.model_copy(update={"mode": EdgeMode.FULL})


def find_documented(name: str) -> str:
    """Returns the documented sample whose stages share a GPU, for the release size in the directory's name.

    If the name has no size, returns the first documented sample.
    """
    # The longest size wins if several are in the name.
    named = [sample for sample, (size, _) in DOCUMENTED.items() if f"-{size}" in f"-{name.lower()}"]
    return max(named, key=lambda sample: len(DOCUMENTED[sample][0]), default=next(iter(DOCUMENTED)))


class Seconds(PlainProgress):
    """Records how long each stage took to start, and prints nothing."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.by_stage: dict[str, float] = {}

    def loading(self, stage: str) -> None:
        """Does nothing."""

    def ready(self, stage: str, seconds: float) -> None:
        """Records the seconds."""
        self.by_stage[stage] = seconds


@contextmanager
def serve(
    context: Context, pipeline: OmniPipeline, checkpoint: Path, name: str, *, drawn: bool = False
) -> Iterator[tuple[LocalPipeline, Seconds]]:
    """Yields a pipeline's stage servers once they are ready, and how long each took. Logs go to the results folder.

    `drawn`: each stage makes the random weights that the checkpoint leaves out (benchmarks/gpu/patched).
    """
    logs = context.out / "logs" / name
    logs.mkdir(parents=True, exist_ok=True)
    seconds = Seconds()
    options = LocalOptions(model_path=str(checkpoint), log_dir=logs, start_timeout_s=1800)
    path = {"PYTHONPATH": f"{PATCHED}:{os.environ.get('PYTHONPATH', '')}"} if drawn else {}
    with environment(**path), LocalPipeline(pipeline, options) as local:
        local.start(seconds)
        yield local, seconds


def gpu_memory_by_process() -> dict[int, int]:
    """Returns process id -> bytes on GPU 0, including CUDA contexts, as the driver counts them.

    The value is 0 where the driver reports none.
    """
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
    """Returns stage -> bytes on GPU 0 of its stage server and all of that server's descendants."""
    used = gpu_memory_by_process()
    return {process.name: sum(used.get(one.pid, 0) for one in process.list_tree()) for process in local._processes}


def wait_until(condition: Any, seconds: float) -> bool:
    """Returns whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
