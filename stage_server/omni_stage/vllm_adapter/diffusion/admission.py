"""Decides which waiting diffusion requests join a step, for DiffusionScheduler. Pure: no clock, no vLLM."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from omni_stage.errors import ConfigurationError
from omni_stage.vllm_adapter.wiring.names import DIFFUSION_SETTINGS


@dataclass(frozen=True, slots=True)
class DiffusionSettings:
    """Limits of a diffusion stage's scheduler."""

    embedding_budget_bytes: int = 512 << 20
    """Maximum number of bytes of payloads in flight. A request that exceeds it runs alone, instead of waiting
    forever."""
    queue_timeout_s: float | None = None
    """Longest wait before the step that runs a request; None means no limit."""
    max_batch: int | None = None
    """Maximum number of diffusion requests in flight; None leaves the limit to max_num_seqs."""
    step_work: int | None = None
    """Maximum work of all requests in flight, in tokens of their prompts: a component gives a request one placeholder
    token for each unit of its work. The limit bounds how long a step takes, and so how long other requests wait for the
    next step. A request that exceeds it runs alone. None leaves the limit to max_num_batched_tokens."""
    cuda_graphs: bool = True
    """Whether a model may capture CUDA graphs. The model reads it, not the scheduler."""

    def __post_init__(self) -> None:
        """Raises ConfigurationError naming the field."""
        _check_count("embedding_budget_bytes", self.embedding_budget_bytes)
        for name in ("max_batch", "step_work"):
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigurationError(f"{DIFFUSION_SETTINGS}.cuda_graphs must be true or false", field="cuda_graphs")
        timeout = self.queue_timeout_s
        if timeout is not None and (
            isinstance(timeout, bool)
            or not isinstance(timeout, int | float)
            or not math.isfinite(timeout)
            or timeout <= 0
        ):
            raise ConfigurationError(
                f"{DIFFUSION_SETTINGS}.queue_timeout_s must be a positive number of seconds or null",
                field="queue_timeout_s",
            )

    @classmethod
    def from_additional_config(cls, additional_config: object) -> DiffusionSettings:
        """Returns the settings in vllm_config.additional_config, or the defaults. Raises ConfigurationError."""
        values: Any = additional_config.get(DIFFUSION_SETTINGS) if isinstance(additional_config, Mapping) else None
        if values is None:
            return cls()
        if not isinstance(values, Mapping):
            raise ConfigurationError(
                f"additional_config.{DIFFUSION_SETTINGS} must be a mapping", field=DIFFUSION_SETTINGS
            )
        known = [item.name for item in fields(cls)]
        unknown = sorted(str(name) for name in values if name not in known)
        if unknown:
            raise ConfigurationError(
                f"additional_config.{DIFFUSION_SETTINGS} has unknown fields {', '.join(unknown)}; "
                f"known are {', '.join(known)}",
                field=DIFFUSION_SETTINGS,
            )
        return cls(**values)


@dataclass(slots=True)
class StepAdmission:
    """Admission to one step. Make a new one for each step, from the requests in flight. Call `admit` in queue order."""

    settings: DiffusionSettings
    in_flight_bytes: int = 0
    in_flight_work: int = 0
    in_flight_requests: int = 0
    closed: bool = False
    """Set by the first refusal: later requests must not overtake the refused one."""

    def admit(self, payload_bytes: int, work: int) -> bool:
        """Returns whether the next diffusion request in the queue joins the step, and counts the request if so."""
        if self.closed or not self._fits(payload_bytes, work):
            self.closed = True
            return False
        self.in_flight_bytes += payload_bytes
        self.in_flight_work += work
        self.in_flight_requests += 1
        return True

    def _fits(self, payload_bytes: int, work: int) -> bool:
        if self.in_flight_requests == 0:
            return True
        settings = self.settings
        if settings.max_batch is not None and self.in_flight_requests >= settings.max_batch:
            return False
        if settings.step_work is not None and self.in_flight_work + work > settings.step_work:
            return False
        return self.in_flight_bytes + payload_bytes <= self.settings.embedding_budget_bytes


def is_expired(queued_at_s: float, now_s: float, timeout_s: float | None) -> bool:
    """Returns whether a request that was queued at queued_at_s has waited too long. Times are monotonic seconds."""
    return timeout_s is not None and now_s - queued_at_s > timeout_s


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{DIFFUSION_SETTINGS}.{name} must be an integer of at least 1", field=name)
