"""What both engine cores show of a loaded engine, read of its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from vllm.config import VllmConfig

from omni_stage.errors import NotReadyError
from omni_stage.vllm_adapter.core.interface import count_sessions


class EngineProperties(ABC):
    """Properties of EngineCore that follow from vLLM's configuration. Each raises NotReadyError before start."""

    @property
    @abstractmethod
    def loaded_config(self) -> VllmConfig:
        """Of the engine that runs. Raises NotReadyError before start."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens."""
        return int(self.loaded_config.model_config.max_model_len)

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below this; None if the model has none."""
        return self.loaded_config.model_config.get_vocab_size() or None

    @property
    def embeds_size(self) -> int:
        """Values of one row of the model's input embeddings."""
        return int(self.loaded_config.model_config.get_inputs_embeds_size())

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's activations."""
        dtype = self.loaded_config.model_config.dtype
        if not isinstance(dtype, torch.dtype):
            raise NotReadyError("the engine has not resolved its dtype")
        return dtype

    @property
    def max_sessions(self) -> int:
        """Requests with input in parts that can be open at once."""
        return count_sessions(self.loaded_config)
