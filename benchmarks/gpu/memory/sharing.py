"""Checks three engines on one GPU with the documented settings: their computed memory, and their memory when they start
in each order."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.gpu.checks import Context, Finding, at_most
from benchmarks.gpu.memory.sizes import DOCUMENTED, Release, pipeline_memory
from benchmarks.gpu.stages.engines import SAMPLES, Seconds, gpu_memory_by_stage, load_sample, wait_until
from omni_cli.local.pipeline import LocalOptions, LocalPipeline
from omni_proto.gpu_memory import GIB, find_problems
from omni_proto.pipeline import load_pipeline

DATA = Path(__file__).parents[3] / "tests" / "data" / "published"


def load_release(size: str) -> Release:
    """Returns the release "7b", "3b" or "30b-a3b"."""
    name = next(DATA.glob(f"*_{size.replace('-', '_')}.config.json")).name.removesuffix(".config.json")
    config = json.loads((DATA / f"{name}.config.json").read_text(encoding="utf-8"))
    tensors = json.loads((DATA / f"{name}_tensors.json").read_text(encoding="utf-8"))
    return Release(config, {name: module["bytes"] for name, module in tensors["modules"].items()})


def arithmetic(_: Context) -> Iterator[Finding]:
    """Checks with vLLM's formulas that the stages fit into the samples' shares, whichever stage starts first."""
    for name, (size, gib) in DOCUMENTED.items():
        stages = pipeline_memory(load_release(size), load_pipeline(SAMPLES / f"{name}.yaml"), device_bytes=gib * GIB)
        problems = [f"{problem.stage} {problem.words}" for problem in find_problems(stages, gib * GIB)]
        share = sum(stage.share for stage in stages)
        words = "; ".join(problems) or f"{sum(stage.total for stage in stages) / GIB:.1f} GiB in shares of {share:.2f}"
        yield Finding(words, f"<={gib} GiB", ok=not problems, name=name)


def starts(context: Context) -> Iterator[Finding]:
    """Starts the stages one after another in every order, each when the previous one is ready. Then starts them all
    together."""
    pipeline, checkpoint = load_sample(context)
    names = [stage.name for stage in pipeline.spec.stages]
    total = torch.cuda.get_device_properties(0).total_memory
    shares = {stage.name: stage.engine_args.gpu_memory_utilization or 1.0 for stage in pipeline.spec.stages}
    for order in [*itertools.permutations(names), ()]:
        logs = context.out / "logs" / f"sharing-{'-'.join(order) or 'together'}"
        logs.mkdir(parents=True, exist_ok=True)
        options = LocalOptions(model_path=str(checkpoint), log_dir=logs, start_timeout_s=1800)
        with _InOrder(pipeline, options, order) as local:
            local.start(Seconds())
            memory = gpu_memory_by_stage(local)
        label = "_".join(order) or "together"
        context.say(f"{label}: {memory}")
        for stage, used in memory.items():
            limit = shares[stage] * total
            yield at_most(used / 1e9, limit / 1e9, name=f"{label}.{stage}", unit="GB", data={"bytes": used})


class _InOrder(LocalPipeline):
    """A local pipeline whose stages start one after another in a given order or, without an order, all together."""

    def __init__(self, pipeline: object, options: LocalOptions, order: tuple[str, ...]) -> None:
        super().__init__(pipeline, options)  # type: ignore[arg-type]
        self._order = order

    def _start_stage(self, config: object, environment: dict[str, str]) -> None:
        if not self._order:
            super()._start_stage(config, environment)  # type: ignore[arg-type]
            return
        self._waiting = {**getattr(self, "_waiting", {}), config.stage: (config, environment)}  # type: ignore[attr-defined]
        if len(self._waiting) < len(self._order):
            return
        for name in self._order:
            super()._start_stage(*self._waiting[name])
            process = self._processes[-1]
            wait_until(lambda process=process: process.read_address() or process.poll() is not None, 1800)
            self.check()
