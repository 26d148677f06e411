"""One output of an engine for one request: what the engine core returns and a component's emitter reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class FinishReason(Enum):
    """Why a stage stopped. Each value has a counterpart in omni_proto.stage.v1.FinishReason."""

    STOP = "stop"
    LENGTH = "length"
    DIFFUSION_DONE = "diffusion_done"
    EMPTY_INPUT = "empty_input"


@dataclass(slots=True)
class EngineStep:
    """One output of the engine for one request, before the component processes it. Deltas, not totals."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] | None = None
    """The prompt's token ids as the engine received them; set in the first step."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that the runner captured, on the CPU. Autoregressive models: either "rows" [n, H], with one row for
    each newly computed position (prompt and output), or the tensors that the model names. M-RoPE models, in the first
    step only: "mrope_positions" [P, 3] int64 and "mrope_delta" [1] int64. Diffusion models: their named outputs."""
    finish_reason: FinishReason | None = None
    """How the request ended; None if it continues. If the request's input arrives in parts, the engine core reports
    here how a part ended; None if the part continues."""
    stop_reason: str = ""
    """A stop token's id, a stop string, or a reason from the scheduler; empty in all other cases."""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when the request was first scheduled, if known."""
