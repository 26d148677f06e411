"""The vLLM model class: what runs in the engine's process. Hook: OneShotModel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree

from omni_stage.payloads import AdditionalInformationPayload
from tones.manifest import SAMPLE_RATE_HZ

TONE_SAMPLES = 240


class ToneModel(nn.Module, IsAttentionFree):
    """Plays each code as a sine of its own frequency; the checkpoint's one weight is the loudness."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.loudness = nn.Parameter(torch.zeros(1))
        self.pooler = IdentityPooler()

    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[torch.Tensor]:
        """float32 [codes x TONE_SAMPLES] for each request."""
        return [self._play(request.tensor("codes").to(self.loudness.device)) for request in requests]

    def _play(self, codes: torch.Tensor) -> torch.Tensor:
        seconds = torch.arange(TONE_SAMPLES, device=codes.device) / SAMPLE_RATE_HZ
        return (self.loudness * torch.sin(2 * torch.pi * 10.0 * codes[:, None] * seconds)).flatten()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the one weight. Returns its name."""
        for _, tensor in weights:
            self.loudness.data.copy_(tensor)
        return {"loudness"}

    def embed_input_ids(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """vLLM asks every model for this; a one-shot model is never called so."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Returns the same."""
        raise NotImplementedError
