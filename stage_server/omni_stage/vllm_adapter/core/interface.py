"""EngineCore: the narrow interface through which the engine package drives vLLM, and its plain outputs.

Two implementations: `async_llm.AsyncEngineCore` (a process of its own; what the server runs) and
`inproc.InprocEngineCore` (a thread of this process; tests and offline use).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import torch
from vllm import PoolingParams, SamplingParams
from vllm.config import VllmConfig
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.v1.engine.exceptions import EngineDeadError

from omni_stage.errors import (
    EngineDeadStageError,
    InvalidRequestError,
    InvalidTensorError,
    ModelExecutionError,
    NonFiniteTensorError,
    OmniStageError,
    PromptTooLongError,
    QueueTimeoutError,
)
from omni_stage.session_queue import SessionRoom
from omni_stage.vllm_adapter.packing import OUTPUT_NAME, ROWS_NAME, unpack

logger = logging.getLogger(__name__)

Params: TypeAlias = SamplingParams | PoolingParams

QUEUE_TIMEOUT = "queue_timeout"
DIFFUSION_DONE = "diffusion_done"
INVALID_PAYLOAD = "invalid_payload"

# Kinds of packed errors that are the request's fault; every other kind is the model's.
_ERROR_KINDS: dict[str, type[OmniStageError]] = {
    QUEUE_TIMEOUT: QueueTimeoutError,
    QueueTimeoutError.__name__: QueueTimeoutError,
    InvalidRequestError.__name__: InvalidRequestError,
    InvalidTensorError.__name__: InvalidTensorError,
    NonFiniteTensorError.__name__: NonFiniteTensorError,
}


@dataclass(frozen=True, slots=True)
class CorePart:
    """A part of a request whose input comes in parts (vLLM 0.32: resumable requests)."""

    prompt: Mapping[str, Any]
    """Token ids that follow the existing ones. vLLM drops the last token that it sampled: later parts begin with it."""
    params: SamplingParams
    """Of this part: max_tokens counts its own tokens."""
    last: bool
    """Whether no part follows."""


@dataclass(slots=True)
class Capture:
    """What the output processor kept of one request beside vLLM's own outputs."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    """Worker outputs since the last `take`, in order, unchanged (plain or packed)."""
    stop_reason: str = ""
    """Stop reason of a pooling request, which PoolingRequestOutput has no field for."""
    on_submit: Callable[[], None] | None = None
    """Called when the request goes to the engine core."""
    outputs: int = 0
    """Outputs so far."""

    def take(self) -> list[torch.Tensor]:
        """Returns the tensors kept so far, and forgets them."""
        taken, self.tensors = self.tensors, []
        return taken


@dataclass(slots=True)
class CoreOutput:
    """One output of the engine for one request. Deltas."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] | None = None
    """As the engine saw it; None after the first output."""
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    finish_reason: str | None = None
    """vLLM's: "stop", "length", "repetition"; "diffusion_done" of a diffusion request. Of input in parts: how the part
    ended."""
    stop_reason: str = ""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when the scheduler first took the request, where known."""


class EngineCore(Protocol):
    """A vLLM engine. All methods are called on one event loop."""

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
        """Values of one row of the model's input embeddings."""
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
        """What requests with input in parts can fill.

        A request that waits for its next part keeps its KV and cannot be preempted. If more are open than fit at their
        full length, they wait for each other's KV forever.
        """
        ...

    async def start(self) -> None:
        """Load the model. Raises ConfigurationError or EngineDeadStageError."""
        ...

    def check_structured(self, params: SamplingParams) -> None:
        """Check the form that the text must have, as vLLM does. Takes as long as the grammar is large: run in a thread.

        Raises InvalidRequestError.
        """
        ...

    async def compare_with_eager(self) -> str:
        """Returns how an autoregressive model as configured differs from its own code (compiled_check), or "".

        Call it before the first request. Raises EngineDeadStageError.
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
    ) -> AsyncGenerator[CoreOutput, None]:
        """Run one request; closing the generator aborts it. A lower priority is scheduled earlier.

        `on_submit` is called on the event loop when vLLM's input processor is done with the request, as it goes to the
        engine core; an engine of this process, which processes inputs between its steps, calls it at once.
        Raises OmniStageError.
        """
        ...

    def stream_parts(
        self, request_id: str, parts: AsyncGenerator[CorePart, None], *, priority: int = 0
    ) -> AsyncGenerator[CoreOutput, None]:
        """Run one autoregressive request whose input comes in parts; closing the generator aborts it.

        A part is asked for once the one before has ended, that is, once its last output (with a finish_reason) was
        consumed. The request ends after the part that says it is the last, or when there are no more. Closes `parts`.
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
"""The method of one-shot stages' workers (diffusion/worker)."""
COMPARE_WITH_EAGER = "compare_with_eager"
"""The workers' method (ar/worker.py)."""


def find_session_room(config: VllmConfig) -> SessionRoom:
    """Returns EngineCore.session_room of an engine whose KV cache is allocated."""
    cache, most = config.cache_config, int(config.scheduler_config.max_num_seqs)
    if not cache.num_gpu_blocks:
        return SessionRoom(most)
    size, length, total = int(cache.block_size), int(config.model_config.max_model_len), int(cache.num_gpu_blocks)
    full = -(-length // size)
    tokens = cache.kv_cache_size_tokens
    # One block is vLLM's null block.
    if tokens is None or tokens >= total * length // full:
        return SessionRoom(most, total - 1, size)
    # Layers that differ (sliding windows): vLLM reports how many tokens fit in sequences of full length, and a
    # short one needs more per token. So each counts as one of full length.
    fitting = max(1, tokens * (total - 1) // total // length)
    return SessionRoom(most, fitting * full, size, at_least=length)


def convert_output(output: RequestOutput | PoolingRequestOutput[Any], capture: Capture, *, first: bool) -> CoreOutput:
    """Convert one vLLM output and the tensors captured with it.

    Raises the OmniStageError that the worker packed, QueueTimeoutError, ModelExecutionError.
    """
    prompt_token_ids = list(output.prompt_token_ids or []) if first else None
    if isinstance(output, RequestOutput):
        completion = output.outputs[0]
        # The tensors first: they may hold the error that explains the finish reason.
        tensors = join_tensors(capture.take(), ROWS_NAME)
        # A stop token's id, a stop text, or a reason of our scheduler.
        stop_reason = "" if completion.stop_reason is None else str(completion.stop_reason)
        _check_finish(completion.finish_reason, stop_reason)
        return CoreOutput(
            token_ids=list(completion.token_ids),
            text=completion.text,
            prompt_token_ids=prompt_token_ids,
            tensors=tensors,
            finish_reason=completion.finish_reason,
            stop_reason=stop_reason,
            scheduled_ns=_scheduled_ns(output),
        )
    data = output.outputs.data
    tensors = join_tensors([data], OUTPUT_NAME)
    if capture.stop_reason not in (DIFFUSION_DONE, ""):
        raise _ended_early("abort", capture.stop_reason)
    if data.numel() == 0:
        raise _ended_early("abort", "no output")
    return CoreOutput(
        prompt_token_ids=prompt_token_ids,
        tensors=tensors,
        finish_reason=DIFFUSION_DONE,
        stop_reason=capture.stop_reason or DIFFUSION_DONE,
    )


def join_tensors(parts: Iterable[torch.Tensor], default_name: str) -> dict[str, torch.Tensor]:
    """Unpack worker outputs of one request and join those of one name along their rows, in order.

    Raises the error that a part packs (see packing.pack_error).
    """
    named: dict[str, list[torch.Tensor]] = {}
    for part in parts:
        unpacked = unpack(part, default_name)
        if unpacked.error is not None:
            kind, message = unpacked.error
            raise _ERROR_KINDS.get(kind, ModelExecutionError)(message)
        for name, tensor in unpacked.tensors.items():
            named.setdefault(name, []).append(tensor)
    return {name: group[0] if len(group) == 1 else torch.cat(group) for name, group in named.items()}


def translate_error(error: Exception) -> OmniStageError:
    """Translate an exception of vLLM to an OmniStageError, whose message never echoes values."""
    if isinstance(error, OmniStageError):
        return error
    if isinstance(error, EngineDeadError):
        return EngineDeadStageError("the engine's process ended; the stage restarts")
    if isinstance(error, VLLMValidationError):
        message = str(error.args[0]) if error.args else "refused by the engine"
        if "longer than the maximum" in message or "maximum context length" in message:
            return PromptTooLongError("the prompt with its media does not fit the engine's longest sequence")
        parameter = error.parameter or ""
        suffix = f": parameter {parameter}" if parameter else ""
        return InvalidRequestError(f"the engine refused the request{suffix}", field=parameter)
    if isinstance(error, VLLMClientError):
        return InvalidRequestError(f"the engine refused the request ({type(error).__name__})")
    # Log only the type: messages of vLLM may quote prompts.
    logger.error(
        "a request failed in the engine: %s caused by %s", type(error).__name__, type(error.__cause__).__name__
    )
    return ModelExecutionError(f"the engine failed on the request ({type(error).__name__})")


def _check_finish(finish_reason: str | None, stop_reason: str) -> None:
    # "repetition": a token was written as often in a row as the request allows (SamplingParams.repetition_detection).
    if finish_reason not in (None, "stop", "length", "repetition"):
        raise _ended_early(finish_reason, stop_reason)


def _ended_early(finish_reason: str, stop_reason: str) -> OmniStageError:
    """Returns the error of a request that the scheduler ended. Stop reasons are a constant or `constant: message`."""
    constant, _, message = stop_reason.partition(": ")
    if constant == QUEUE_TIMEOUT:
        return QueueTimeoutError("the request waited too long in the engine's queue; retry later or add replicas")
    if constant == INVALID_PAYLOAD:
        return InvalidTensorError(message or "the request's payload cannot be read")
    return ModelExecutionError(f"the engine ended the request early ({stop_reason or finish_reason})")


def _scheduled_ns(output: RequestOutput) -> int | None:
    scheduled = getattr(output.metrics, "scheduled_ts", 0.0)
    return int(scheduled * 1e9) if scheduled else None
