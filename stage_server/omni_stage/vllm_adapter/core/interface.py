"""EngineCore: the narrow interface through which the engine package drives vLLM.

Two implementations: `async_llm.AsyncEngineCore` (a process of its own; what the server runs) and
`inproc.InprocEngineCore` (a thread of this process; tests and offline use).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from vllm import PoolingParams, SamplingParams

from omni_stage.exchange import EngineStep
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom

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


class EngineCore(Protocol):
    """A vLLM engine. All methods except check_structured and describe_tokenizer are called on one event loop."""

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens."""
        ...

    @property
    def is_dead(self) -> bool:
        """Whether the engine can no longer serve."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Token ids are below this; None if the model has none."""
        ...

    @property
    def embeds_size(self) -> int:
        """Number of values in one row of the model's input embeddings."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Type of the model's activations."""
        ...

    @property
    def generation_defaults(self) -> Mapping[str, Any]:
        """Sampling parameters of the checkpoint's generation_config.json, by vLLM's names."""
        ...

    @property
    def session_room(self) -> SessionRoom:
        """How many requests with input in parts may be open, and how much KV cache they can fill.

        A request that waits for its next part keeps its KV cache and cannot be preempted. If more requests are open
        than fit at full length, they may wait for each other's KV cache forever.
        """
        ...

    async def start(self) -> None:
        """Load the model. Raises ConfigurationError or EngineDeadStageError."""
        ...

    def describe_tokenizer(self) -> bytes:
        """Returns xgrammar's information about the tokenizer, as JSON. Call it in a thread: it takes about a second."""
        ...

    def check_structured(self, params: SamplingParams, field: str) -> None:
        """Check the form that the text must have, as vLLM does. Raises InvalidRequestError with `field`.

        Call it in a thread: a large grammar takes long.
        """
        ...

    async def compare_with_eager(self) -> str:
        """Returns how an autoregressive model as configured differs from its own code (compiled_check).

        Returns "" if it does not differ. Call it before the first request. Raises EngineDeadStageError.
        """
        ...

    async def serve_eager(self) -> None:
        """Run all later steps with the model's own code, one at a time: none is launched before the last has ended.

        An eager step spends its time on launches, so a step ahead would only delay outputs. Weights, KV cache and
        graphs of a model's own stay. Call it before the first request. Raises EngineDeadStageError.
        """
        ...

    async def warm_steps(self) -> None:
        """Run the sizes of an autoregressive model's steps that vLLM's own warm-up leaves out (warm_steps).

        Raises EngineDeadStageError.
        """
        ...

    async def kernels_compiled(self) -> int:
        """Returns the number of kernels that the engine has compiled since the first call (compile_watch).

        Raises EngineDeadStageError.
        """
        ...

    def stream(
        self,
        request_id: str,
        prompt: Mapping[str, Any],
        params: Params,
        *,
        priority: int = 0,
        on_submit: Callable[[], None] | None = None,
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one request; closing the generator aborts it. A lower `priority` number is scheduled earlier.

        `on_submit` is called on the event loop when vLLM's input processor has finished and the request is sent to the
        engine core. An engine in this process calls it immediately, because it processes inputs between its steps.
        Raises OmniStageError.
        """
        ...

    def stream_parts(
        self, request_id: str, parts: AsyncGenerator[CorePart, None], *, priority: int = 0
    ) -> AsyncGenerator[EngineStep, None]:
        """Run one autoregressive request whose input comes in parts; closing the generator aborts it.

        The next part is read once the previous part has ended, that is, once its last output (with a finish_reason) was
        consumed. The request ends after the part that is marked as the last, or when `parts` ends. Closes `parts`.
        Raises OmniStageError, and what `parts` raises.
        """
        ...

    async def abort(self, request_id: str) -> None:
        """End a request. Unknown ids are ignored."""
        ...

    async def end_stream(self, stream: str) -> None:
        """Free what a one-shot model keeps of a stream that ended before its last part (hooks.KeepsStreams)."""
        ...

    async def shutdown(self) -> None:
        """End the engine. Idempotent."""
        ...


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
