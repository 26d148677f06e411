"""The finish reason of an engine's step, as a component's emitter reads it."""

from __future__ import annotations

from omni_proto.pipeline.components import EngineKind
from omni_stage.exchange import EngineStep, FinishReason


def finish_reason(step: EngineStep, kind: EngineKind) -> FinishReason | None:
    """Returns how the request of this step ended, or the part of a request; None if it continues.

    Diffusion and decoder stages share a runner, which reports DIFFUSION_DONE. A decoder runs no diffusion, so its
    requests end with STOP.
    """
    reason = step.finish_reason
    return FinishReason.STOP if kind is EngineKind.DECODER and reason is FinishReason.DIFFUSION_DONE else reason
