"""Properties that both engine cores read from the configuration of their engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.tokenizers import cached_tokenizer_from_config

from omni_stage.errors import InvalidRequestError, NotReadyError
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom
from omni_stage.vllm_adapter.structured import MeteredBackend


def keep_worker_in_engine(config: VllmConfig) -> VllmConfig:
    """Put an engine's only worker into the engine's process. Returns the configuration, changed in place.

    vLLM 0.32's CPU platform replaces the executor of an engine with one that has a process per worker
    (`platforms/cpu.py`), because only then can it set a worker's OpenMP variables. Here the stage server sets these
    variables before it imports vLLM (process/env.py), and every process inherits them. So a single worker runs in its
    engine's process, as in vLLM on a GPU, and one fewer process imports torch, transformers and vLLM (docs/adr/0009).
    """
    if config.parallel_config.world_size == 1:
        config.parallel_config.distributed_executor_backend = "uni"
    return config


class EngineProperties(ABC):
    """Properties of EngineCore that follow from vLLM's configuration. All but `generation_defaults` raise NotReadyError
    before start."""

    def __init__(self, make_config: Callable[[], VllmConfig]) -> None:
        """`make_config` is called on the engine's thread; it raises ConfigurationError."""
        self._make_config = make_config
        self.generation_defaults: Mapping[str, Any] = {}
        """Sampling parameters of the checkpoint's generation_config.json, by vLLM's names; empty before start."""

    def _create_config(self) -> VllmConfig:
        """Returns the configuration of the engine to start. Reads files: runs on the engine's thread."""
        config = keep_worker_in_engine(self._make_config())
        self.generation_defaults = dict(config.model_config.get_diff_sampling_param())
        return config

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
        """Number of values in one row of the model's input embeddings."""
        return int(self.loaded_config.model_config.get_inputs_embeds_size())

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's activations."""
        dtype = self.loaded_config.model_config.dtype
        if not isinstance(dtype, torch.dtype):
            raise NotReadyError("the engine has not resolved its dtype")
        return dtype

    def describe_tokenizer(self) -> bytes:
        """See EngineCore."""
        config = self.loaded_config.model_config
        tokenizer = cached_tokenizer_from_config(config)
        backend = MeteredBackend(self.loaded_config, tokenizer=tokenizer, vocab_size=config.get_vocab_size())
        return backend.describe_tokenizer()

    def check_structured(self, params: SamplingParams, field: str) -> None:
        """See EngineCore. vLLM repeats the check when it takes the request, with a less precise error.

        Private interface: `SamplingParams._validate_structured_outputs` (vLLM 0.32, sampling_params.py). Only this
        method runs the check of the engine's backend (engine/vllm_engine.py), and names the backend in `params`.
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
                "vLLM's structured output cannot enforce this form: it is invalid, or xgrammar does not support it",
                field=field,
            ) from error

    @property
    def session_room(self) -> SessionRoom:
        """See EngineCore."""
        return find_session_room(self.loaded_config)


def find_session_room(config: VllmConfig) -> SessionRoom:
    """Returns EngineCore.session_room of an engine whose KV cache is allocated."""
    cache, maximum = config.cache_config, int(config.scheduler_config.max_num_seqs)
    if not cache.num_gpu_blocks:
        return SessionRoom(maximum)
    size, length, total = int(cache.block_size), int(config.model_config.max_model_len), int(cache.num_gpu_blocks)
    full = -(-length // size)
    tokens = cache.kv_cache_size_tokens
    # One block is vLLM's null block.
    if tokens is None or tokens >= total * length // full:
        return SessionRoom(maximum, total - 1, size)
    # Layers differ (sliding windows): vLLM reports how many tokens fit in sequences of full length, and a shorter
    # sequence needs more blocks per token. So each session counts as one of full length.
    fitting = max(1, tokens * (total - 1) // total // length)
    return SessionRoom(maximum, fitting * full, size, minimum_tokens=length)
