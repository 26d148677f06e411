"""The vLLM model class, which runs in the engine's process. It implements the hook OneShotModel."""

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
"""Length of a tone in samples."""


class ToneModel(nn.Module, IsAttentionFree):
    """Plays each code as a sine of 10 Hz times the code. The checkpoint's only weight is the loudness."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        self.loudness = nn.Parameter(torch.zeros(1))
        self.pooler = IdentityPooler()

    def generate(self, requests: Sequence[AdditionalInformationPayload]) -> list[torch.Tensor]:
        """Returns the samples of each request: float32 [number of codes * TONE_SAMPLES]."""
        return [self._play(request.tensor("codes").to(self.loudness.device)) for request in requests]

    def _play(self, codes: torch.Tensor) -> torch.Tensor:
        seconds = torch.arange(TONE_SAMPLES, device=codes.device) / SAMPLE_RATE_HZ
        return (self.loudness * torch.sin(2 * torch.pi * 10.0 * codes[:, None] * seconds)).flatten()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the only weight. Returns its name."""
        for _, tensor in weights:
            self.loudness.data.copy_(tensor)
        return {"loudness"}

    def embed_input_ids(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Part of vLLM's model interface. The runner of one-shot models never calls it."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Part of vLLM's model interface. The runner of one-shot models never calls it."""
        raise NotImplementedError
