"""Outputs of the core as the plain steps that components read."""

from __future__ import annotations

from omni_proto.pipeline.components import EngineKind
from omni_stage.models.component import EngineStep, FinishReason
from omni_stage.vllm_adapter.core.interface import CoreOutput

# vLLM's "repetition": one token was sampled as often in a row as the component allows. The stop reason names it.
_FINISH_REASONS = {"repetition": FinishReason.STOP} | {reason.value: reason for reason in FinishReason}


def finish_reason(output: CoreOutput, kind: EngineKind) -> FinishReason | None:
    """Returns how the request, or the part, of this output ended; None if it continues."""
    if output.finish_reason is None:
        return None
    reason = _FINISH_REASONS[output.finish_reason]
    # Both kinds of one-shot stages run on the same runner, but a decoder ran no diffusion.
    return FinishReason.STOP if kind is EngineKind.DECODER and reason is FinishReason.DIFFUSION_DONE else reason


def engine_step(output: CoreOutput, ended: FinishReason | None) -> EngineStep:
    """Returns the step of an output. `ended`: how the whole request ended, if it did."""
    return EngineStep(
        token_ids=output.token_ids,
        text=output.text,
        prompt_token_ids=output.prompt_token_ids,
        tensors=output.tensors,
        finish_reason=ended,
        stop_reason=output.stop_reason,
        scheduled_ns=output.scheduled_ns,
    )
