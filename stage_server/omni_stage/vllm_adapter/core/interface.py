"""EngineCore: the narrow interface through which the engine package drives vLLM.

Two implementations: `async_llm.AsyncEngineCore` (a process of its own; what the server runs) and
`inproc.InprocEngineCore` (a thread of this process; tests and offline use).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from vllm import PoolingParams, SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError
from vllm.tokenizers import cached_tokenizer_from_config

from omni_stage.errors import InvalidRequestError, NotReadyError
from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom
from omni_stage.vllm_adapter.structured import MeteredBackend

Params: TypeAlias = SamplingParams | PoolingParams


@dataclass(frozen=True, slots=True)
class CorePart:
    """A part of a request whose input comes in parts (vLLM 0.32: resumable requests)."""

    prompt: Mapping[str, Any]
    """Token ids that follow the existing ones. vLLM drops the token that was sampled last, so a later part begins with
    this token."""
    params: SamplingParams
    """Sampling parameters of this part: max_tokens counts the part's own tokens."""
    last: bool
    """Whether no part follows."""


END_STREAM = "end_stream"
"""Name of the method that ends a stream in the workers of one-shot stages (gpu_workers.py)."""
COMPARE_WITH_EAGER = "compare_with_eager"
SERVE_EAGER = "serve_eager"
WARM_STEPS = "warm_steps"
"""Names of methods of all workers of autoregressive stages (gpu_workers.py)."""
KERNELS_COMPILED = "kernels_compiled"
"""Name of a method of all workers (worker/compile_watch.py)."""
STEPS_IN_FLIGHT = "batch_queue_size"
"""vLLM 0.32's `EngineCore` launches another step while fewer than so many have not ended. It has no setter."""


class EngineCore(ABC):
    """A vLLM engine. All methods except check_structured and describe_tokenizer are called on one event loop.

    All properties but `generation_defaults` raise NotReadyError before start.
    """

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
        """Configuration of the running engine."""

    @property
    @abstractmethod
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve."""

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

    @property
    def session_room(self) -> SessionRoom:
        """How many requests with input in parts may be open, and how much KV cache they can fill.

        A request that waits for its next part keeps its KV cache and cannot be preempted. If more requests are open
        than fit at full length, they may wait for each other's KV cache forever.
        """
        return find_session_room(self.loaded_config)

    def describe_tokenizer(self) -> bytes:
        """Returns xgrammar's information about the tokenizer, as JSON. Call it in a thread: it takes about a second."""
        config = self.loaded_config.model_config
        tokenizer = cached_tokenizer_from_config(config)
        backend = MeteredBackend(self.loaded_config, tokenizer=tokenizer, vocab_size=config.get_vocab_size())
        return backend.describe_tokenizer()

    def check_structured(self, params: SamplingParams, field: str) -> None:
        """Check the form that the text must have, as vLLM does. Raises InvalidRequestError with `field`.

        Call it in a thread: a large grammar takes long. vLLM repeats the check when it takes the request, with a less
        precise error.

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

    @abstractmethod
    async def start(self) -> None:
        """Load the model. Raises ConfigurationError or EngineDeadStageError."""

    async def compare_with_eager(self) -> str:
        """Returns how an autoregressive model as configured differs from its own code (compiled_check).

        Returns "" if it does not differ. Call it before the first request. Raises EngineDeadStageError.
        """
        return next(filter(None, await self._ask_workers(COMPARE_WITH_EAGER)), "")

    @abstractmethod
    async def serve_eager(self) -> None:
        """Run all later steps with the model's own code, one at a time: none is launched before the last has ended.

        An eager step spends its time on launches, so a step ahead would only delay outputs. Weights, KV cache and
        graphs of a model's own stay. Call it before the first request. Raises EngineDeadStageError.
        """

    async def warm_steps(self) -> None:
        """Run the sizes of an autoregressive model's steps that vLLM's own warm-up leaves out (warm_steps).

        Raises EngineDeadStageError.
        """
        await self._ask_workers(WARM_STEPS)

    async def kernels_compiled(self) -> int:
        """Returns the number of kernels that the engine has compiled since the first call (compile_watch).

        Raises EngineDeadStageError.
        """
        return sum(await self._ask_workers(KERNELS_COMPILED))

    @abstractmethod
    async def _ask_workers(self, method: str) -> list[Any]:
        """Returns what a method of each worker returns. Raises EngineDeadStageError."""

    @abstractmethod
    def stream(
        self,
        request_id: str,
        prompt: Mapping[str, Any],
        params: Params,
        *,
        priority: int = 0,
        on_submit: Callable[[], None] | None = None,
        traceparent: str = "",
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one request; closing the generator aborts it. A lower `priority` number is scheduled earlier.

        `on_submit` is called on the event loop when vLLM's input processor has finished and the request is sent to the
        engine core. An engine in this process calls it immediately, because it processes inputs between its steps.
        `traceparent`: the span below which vLLM's own span of the request is made, except by an engine in this process.
        Raises OmniStageError.
        """

    @abstractmethod
    def stream_parts(
        self, request_id: str, parts: AsyncGenerator[CorePart, None], *, priority: int = 0
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one autoregressive request whose input comes in parts; closing the generator aborts it.

        The next part is read once the previous part has ended, that is, once its last output (with a finish_reason) was
        consumed. The request ends after the part that is marked as the last, or when `parts` ends. Closes `parts`.
        Raises OmniStageError, and what `parts` raises.
        """

    @abstractmethod
    async def abort(self, request_id: str) -> None:
        """End a request: its stream raises ModelExecutionError unless it is closed first. Unknown ids are ignored."""

    @abstractmethod
    async def end_stream(self, stream: str) -> None:
        """Free what a one-shot model keeps of a stream that ended before its last part (hooks.KeepsStreams)."""

    @abstractmethod
    async def shutdown(self) -> None:
        """End the engine. Idempotent."""


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
