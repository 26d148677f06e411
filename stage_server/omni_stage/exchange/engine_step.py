"""One output of an engine for one request: what the engine core returns and a component's emitter reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from omni_proto.brief import Brief

if TYPE_CHECKING:
    import torch


class FinishReason(Enum):
    """Why a stage stopped. Each value has a counterpart in omni_proto.stage.v1.FinishReason."""

    STOP = "stop"
    LENGTH = "length"
    DIFFUSION_DONE = "diffusion_done"
    EMPTY_INPUT = "empty_input"


@dataclass(slots=True, repr=False)
class EngineStep(Brief):
    """One output of the engine for one request, before the component processes it. It holds only what is new since the
    request's previous output."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] | None = None
    """The prompt's token ids as the engine received them; set in the first step."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The tensors that the runner captured, on the CPU. An autoregressive model has either "rows" [n, H], with one row
    for each newly computed position (prompt and output), or the tensors that the model names. A model with M-RoPE also
    has, in the first step only, "mrope_positions" [P, 3] int64 for the P tokens of the prompt, and "mrope_delta" [1]
    int64. A diffusion model has the outputs that it names."""
    finish_reason: FinishReason | None = None
    """How the request ended; None if it continues. If the request's input arrives in parts, the engine core sets this
    to how a part ended, and to None while the part continues."""
    stop_reason: str = ""
    """The id of the stop token, the stop string, or the scheduler's reason that ended the request; else empty."""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when the request was first scheduled, if known."""
