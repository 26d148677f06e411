"""Decides which GPUs the stages of a local run use, as the device plugin does in a cluster, and their variables.

Each stage gets its own GPUs if there are enough. Otherwise stages share GPUs by their gpuMemoryUtilization
(docs/gpu-sizing.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omni_proto.gpu_memory import DEFAULT_SHARE
from omni_proto.pipeline import OmniPipeline, gpus_of, order_stages

VISIBLE = "CUDA_VISIBLE_DEVICES"
MPS_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_DEVICE = re.compile(r"nvidia\d+")


def list_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> list[str]:
    """Returns the machine's GPUs: the entries of CUDA_VISIBLE_DEVICES if it is set, else one index per device file.

    The list is empty if there are no such files (no NVIDIA driver, or WSL).
    """
    if VISIBLE in environ:
        return [name.strip() for name in environ[VISIBLE].split(",") if name.strip()]
    return [
        str(index) for index, _ in enumerate(file for file in devices.glob("nvidia*") if _DEVICE.fullmatch(file.name))
    ]


def stage_environments(pipeline: OmniPipeline, environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Returns the variables that each stage's process gets beside `environ`: those of the resource that have a value
    (valueFrom needs a cluster), and those that assign GPUs.

    Raises ValueError, which names a stage, if the stages do not fit the GPUs; and if MPS is asked for, but not there.
    """
    assigned = gpu_environments(pipeline, list_gpus(environ))
    found: dict[str, dict[str, str]] = {}
    for stage in pipeline.spec.stages:
        given = pipeline.spec.defaults.env if stage.env is None else stage.env
        variables = {one.name: one.value or "" for one in given or () if one.value_from is None}
        if stage.name in assigned:
            check_mps({**environ, **variables})
        found[stage.name] = {**variables, **assigned.get(stage.name, {})}
    return found


def check_mps(environ: Mapping[str, str]) -> None:
    """Raises ValueError if the variables name the directory of an MPS daemon that does not run.

    CUDA would say nothing, and run without MPS: in time slices.
    """
    folder = environ.get(MPS_PIPES)
    if folder and not (control := Path(folder) / "control").exists():
        raise ValueError(
            f"{MPS_PIPES} is {folder}, but no MPS daemon runs there: {control} is missing. Start it with "
            "nvidia-cuda-mps-control -d in the same environment, or unset the variable (docs/gpu-sizing.md)"
        )


def gpu_environments(pipeline: OmniPipeline, gpus: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns the environment variables that assign GPUs to each stage. Stages without GPUs are left out.

    The result is empty if gpus is empty. Raises ValueError, which names a stage, if the stages do not fit the GPUs.
    """
    if not gpus:
        return {}
    demands = [
        GpuDemand(stage.name, gpus_of(stage), stage.engine_args.gpu_memory_utilization if stage.engine_args else None)
        for stage in order_stages(pipeline)
    ]
    return {
        # By default CUDA gives the fastest GPU number 0. NVML, which vLLM uses too, numbers GPUs by PCI bus. With
        # PCI_BUS_ID, CUDA does the same.
        stage: {VISIBLE: ",".join(gpus[index] for index in indices), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        for stage, indices in assign_gpus(demands, len(gpus)).items()
    }


@dataclass(slots=True)
class _Gpu:
    index: int
    left: float = 1.0
    stages: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GpuDemand:
    """What a stage requests: a number of GPUs, and the share of one GPU that it uses if stages must share GPUs."""

    stage: str
    gpus: int
    share: float | None = None
    """gpuMemoryUtilization; None: not set, so the stage takes nearly a whole GPU."""


def assign_gpus(demands: Iterable[GpuDemand], count: int) -> dict[str, tuple[int, ...]]:
    """Returns the GPU indices of each stage that requests GPUs, on a machine with `count` GPUs.

    If there are enough GPUs, no stages share one. Otherwise stages with several GPUs get theirs first, and stages with
    one GPU share the rest by their gpuMemoryUtilization, first fit. Raises ValueError, which names the stage that does
    not fit.
    """
    wanted = [demand for demand in demands if demand.gpus]
    free = list(range(count))
    if sum(demand.gpus for demand in wanted) <= count:
        return {demand.stage: tuple(free.pop(0) for _ in range(demand.gpus)) for demand in wanted}
    result: dict[str, tuple[int, ...]] = {}
    for demand in wanted:
        if demand.gpus == 1:
            continue
        if demand.gpus > len(free):
            raise ValueError(f"stage {demand.stage} needs {demand.gpus} GPUs, but only {len(free)} of {count} are left")
        result[demand.stage] = tuple(free.pop(0) for _ in range(demand.gpus))
    shared = [_Gpu(index) for index in free]
    for demand in (demand for demand in wanted if demand.gpus == 1):
        share = DEFAULT_SHARE if demand.share is None else demand.share
        # Rounded, because the sum of decimal fractions such as 0.6 + 0.2 + 0.2 may differ slightly from 1.
        fitting = next((gpu for gpu in shared if round(gpu.left - share, 9) >= 0), None)
        if fitting is None:
            taken = "; ".join(f"GPU {gpu.index}: {', '.join(gpu.stages)}" for gpu in shared if gpu.stages)
            raise ValueError(
                f"stage {demand.stage} needs {share:g} of a GPU, but none of {count} has that left"
                f"{f' ({taken})' if taken else ''}; set engineArgs.gpuMemoryUtilization on each stage so that the sum "
                "on a GPU is at most 1 (docs/gpu-sizing.md), or name more GPUs in CUDA_VISIBLE_DEVICES"
            )
        fitting.left -= share
        fitting.stages.append(demand.stage)
        result[demand.stage] = (fitting.index,)
    return result
