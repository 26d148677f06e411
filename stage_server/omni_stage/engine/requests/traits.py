"""The properties of a started engine against which requests are validated."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omni_stage.payloads import DEFAULT_LIMITS, PayloadLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTraits:
    """The properties of the engine that validation needs."""

    max_model_len: int
    """Longest sequence in tokens, prompt and output together."""
    vocab_size: int | None = None
    """Valid token ids are below this number. If it is None, ids below 2^31 are valid."""
    hidden_size: int | None = None
    """Hidden size of the model's embeddings. If it is None, prompt embeddings are refused."""
    embeds_dtype: torch.dtype | None = None
    """The dtype to which prompt embeddings are cast. If it is None, they keep their own dtype."""
    stream_fed: bool = False
    """Whether the request's input comes in parts."""
    limits: PayloadLimits = DEFAULT_LIMITS
