"""Names that the stage server and the engine's processes share: keys of additional_config, stop reasons, and the worker
and scheduler classes that vLLM uses, as strings. So this module imports neither torch nor vLLM.

vLLM resolves the names of classes itself (`ParallelConfig.worker_cls`, `SchedulerConfig.scheduler_cls`), in the engine
core's process as well as in the workers'.
"""

from __future__ import annotations

from typing import Final, Literal

from omni_stage.errors import ConfigurationError

StageKind = Literal["autoregressive", "diffusion"]
Device = Literal["cpu", "cuda"]

_PACKAGE = "omni_stage.vllm_adapter"
_WORKERS: dict[tuple[str, str], str] = {
    ("autoregressive", "cpu"): f"{_PACKAGE}.cpu_workers.CPUARWorker",
    ("autoregressive", "cuda"): f"{_PACKAGE}.gpu_workers.GPUARWorker",
    ("diffusion", "cpu"): f"{_PACKAGE}.cpu_workers.CPUDiffusionWorker",
    ("diffusion", "cuda"): f"{_PACKAGE}.gpu_workers.GPUDiffusionWorker",
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


DIFFUSION_SETTINGS: Final = "omni_diffusion"
"""Key of vllm_config.additional_config: fields of DiffusionSettings."""
MEDIA_SHARE: Final = "omni_media_share"
"""Key of vllm_config.additional_config: the largest share of the engine's time for media, above 0 and at most 1
(MediaShare)."""
PAYLOAD_LIMITS: Final = "omni_payload_limits"
"""Key of vllm_config.additional_config: fields of PayloadLimits, which every scheduler reads."""

ROW_POSITIONS: Final = "omni_row_positions"
"""Tensor from the worker to the scheduler: [n] int64, the positions of the rows beside it. Sent only if the model
chooses positions and the stage caches prefixes."""
ROWS_REUSED: Final = "omni_rows_reused"
"""Tensor from the scheduler to the front end: [2] int64, how many rows of an output come from a cached prefix, and
their bytes."""

QUEUE_TIMEOUT: Final = "queue_timeout"
"""Stop reason of a request that waited too long."""
FORM_COST: Final = "form_cost"
"""Start of the stop reason of a request whose form of structured output cost too much."""
INVALID_PAYLOAD: Final = "invalid_payload"
"""Start of the stop reason of a request whose payload could not be read."""
