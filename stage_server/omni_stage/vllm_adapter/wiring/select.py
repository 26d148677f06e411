"""Names the worker and scheduler classes that vLLM uses, as strings. So this module imports neither torch nor vLLM.

vLLM resolves both names itself (`ParallelConfig.worker_cls`, `SchedulerConfig.scheduler_cls`), in the engine core's
process as well as in the workers'.
"""

from __future__ import annotations

from typing import Literal

from omni_stage.errors import ConfigurationError

StageKind = Literal["autoregressive", "diffusion"]
Device = Literal["cpu", "cuda"]

_PACKAGE = "omni_stage.vllm_adapter"
_WORKERS: dict[tuple[str, str], str] = {
    ("autoregressive", "cpu"): f"{_PACKAGE}.cpu_workers.CPUARWorker",
    ("autoregressive", "cuda"): f"{_PACKAGE}.ar.worker.GPUARWorker",
    ("diffusion", "cpu"): f"{_PACKAGE}.cpu_workers.CPUDiffusionWorker",
    ("diffusion", "cuda"): f"{_PACKAGE}.diffusion.worker.GPUDiffusionWorker",
}
_SCHEDULERS: dict[tuple[str, bool], str] = {
    ("autoregressive", False): f"{_PACKAGE}.scheduling.scheduler.OmniScheduler",
    ("autoregressive", True): f"{_PACKAGE}.scheduling.scheduler.OmniAsyncScheduler",
    # A diffusion request is one step: there is no sampled token whose copy the next step could overlap.
    ("diffusion", False): f"{_PACKAGE}.diffusion.scheduler.DiffusionScheduler",
}


def worker_cls(kind: StageKind, device: Device) -> str:
    """Returns the qualified name of the worker of a stage kind on a device. Raises ConfigurationError."""
    try:
        return _WORKERS[kind, device]
    except KeyError:
        raise ConfigurationError(
            f"no worker for a stage of kind {kind!r} on {device!r}; kinds are autoregressive and diffusion, "
            "devices cpu and cuda",
            field="device",
        ) from None


def scheduler_cls(kind: StageKind, async_scheduling: bool) -> str:
    """Returns the qualified name of the scheduler of a stage kind. Raises ConfigurationError."""
    try:
        return _SCHEDULERS[kind, async_scheduling]
    except KeyError:
        raise ConfigurationError(
            f"no scheduler for a stage of kind {kind!r} with async_scheduling={async_scheduling}; kinds are "
            "autoregressive and diffusion, the latter without asynchronous scheduling",
            field="kind",
        ) from None
