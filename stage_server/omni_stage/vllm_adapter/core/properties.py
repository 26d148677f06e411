"""Properties of a loaded engine that both engine cores read from its configuration."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.tokenizers import cached_tokenizer_from_config

from omni_stage.errors import InvalidRequestError, NotReadyError
from omni_stage.session_queue import SessionRoom
from omni_stage.vllm_adapter.core.interface import find_session_room


class EngineProperties(ABC):
    """Properties of EngineCore that follow from vLLM's configuration. Each raises NotReadyError before start."""

    @property
    @abstractmethod
    def loaded_config(self) -> VllmConfig:
        """Configuration of the running engine. Raises NotReadyError before start."""

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

    def check_structured(self, params: SamplingParams) -> None:
        """See EngineCore. vLLM repeats the check when it takes the request, with a less precise error.

        `SamplingParams._validate_structured_outputs` (vLLM 0.32, sampling_params.py): the choice among the backends,
        and each one's own check, stand nowhere else.
        """
        config = self.loaded_config
        try:
            params._validate_structured_outputs(
                config.model_config,
                config.structured_outputs_config,
                cached_tokenizer_from_config(config.model_config),
            )
        except (ValueError, VLLMClientError) as error:
            raise InvalidRequestError(
                "vLLM's structured output cannot hold text to this form: it is not valid, or uses what no backend "
                "supports",
                field="start.structured_output",
            ) from error

    @property
    def session_room(self) -> SessionRoom:
        """What requests with input in parts can fill."""
        return find_session_room(self.loaded_config)
