"""Converts vLLM's outputs of a request to engine steps, and vLLM's errors to ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.exceptions import VLLMClientError, VLLMValidationError
from vllm.outputs import PoolingRequestOutput, RequestOutput
from vllm.v1.engine.exceptions import EngineDeadError

from omni_stage.errors import (
    EngineDeadStageError,
    InvalidMediaError,
    InvalidRequestError,
    InvalidTensorError,
    ModelExecutionError,
    NonFiniteTensorError,
    OmniStageError,
    PromptTooLongError,
    QueueTimeoutError,
)
from omni_stage.exchange import EngineStep, FinishReason
from omni_stage.vllm_adapter.wiring.names import FORM_COST, INVALID_PAYLOAD, QUEUE_TIMEOUT, ROWS_REUSED
from omni_stage.vllm_adapter.wiring.packing import OUTPUT_NAME, ROWS_NAME, unpack

logger = logging.getLogger(__name__)

# The worker sends an error inside the output tensor (packing.pack_error). These kinds become the same class of
# exception again; all others become ModelExecutionError.
_ERROR_KINDS: dict[str, type[OmniStageError]] = {
    QUEUE_TIMEOUT: QueueTimeoutError,
    QueueTimeoutError.__name__: QueueTimeoutError,
    InvalidRequestError.__name__: InvalidRequestError,
    InvalidTensorError.__name__: InvalidTensorError,
    NonFiniteTensorError.__name__: NonFiniteTensorError,
}

STRUCTURED = "start.structured_output"
# vLLM's "repetition": a token was sampled as often in a row as the request allows
# (SamplingParams.repetition_detection). The stop reason is then "repetition_detected".
_FINISH_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "repetition": FinishReason.STOP}

_LENGTH = re.compile(r"\(length (\d+)\)")
_MODALITY = re.compile(r"contains a\(n\) (\w+) item")
"""Parts of messages in vllm/v1/engine/input_processor.py (0.32), whose errors carry no values."""


@dataclass(slots=True)
class Capture:
    """What the output processor keeps of one request, in addition to vLLM's own outputs."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    """Worker outputs since the last `take`, in order, unchanged (plain or packed)."""
    stop_reason: str = ""
    """Stop reason of a pooling request, which PoolingRequestOutput has no field for."""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when a pooling request was first scheduled, if known; PoolingRequestOutput has no field."""
    on_submit: Callable[[], None] | None = None
    """Called when the request is sent to the engine core."""
    is_structured: bool = False
    """Whether the request's text must have a form."""
    outputs: int = 0
    """Number of outputs so far."""
    traceparent: str = ""
    """The span that vLLM's span of the request is a part of; empty if vLLM makes none."""

    def take(self) -> list[torch.Tensor]:
        """Returns the tensors kept so far, and forgets them."""
        taken, self.tensors = self.tensors, []
        return taken


def convert_output(output: RequestOutput | PoolingRequestOutput[Any], capture: Capture, *, first: bool) -> EngineStep:
    """Returns the engine step of one vLLM output, with its tensors.

    For a RequestOutput, these are the tensors captured since the previous output.

    Raises the OmniStageError that the worker sent, or CorruptTensorError, InvalidTensorError (the scheduler could not
    read the payload), QueueTimeoutError or ModelExecutionError.
    """
    prompt_token_ids = list(output.prompt_token_ids or []) if first else None
    if isinstance(output, RequestOutput):
        completion = output.outputs[0]
        # Unpack the tensors first: they may hold the error that explains the finish reason.
        tensors = join_tensors(capture.take(), ROWS_NAME)
        reused = tensors.pop(ROWS_REUSED, None)
        reused_rows, reused_bytes = (0, 0) if reused is None else reused.tolist()
        # A stop token's id, a stop string, or a reason of our scheduler.
        stop_reason = "" if completion.stop_reason is None else str(completion.stop_reason)
        if completion.finish_reason == "error" and capture.is_structured:
            raise InvalidRequestError(
                "the engine cannot compile the form of structured output, or no token fits it; simplify it",
                field=STRUCTURED,
            )
        finish_reason = _read_finish(completion.finish_reason, stop_reason)
        return EngineStep(
            token_ids=list(completion.token_ids),
            text=completion.text,
            prompt_token_ids=prompt_token_ids,
            cached_tokens=(output.num_cached_tokens or 0) if first else 0,
            tensors=tensors,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            scheduled_ns=_scheduled_ns(output),
            reused_rows=reused_rows,
            reused_bytes=reused_bytes,
        )
    data = output.outputs.data
    tensors = join_tensors([data], OUTPUT_NAME)
    if capture.stop_reason not in (FinishReason.DIFFUSION_DONE.value, ""):
        raise _ended_early("abort", capture.stop_reason)
    if data.numel() == 0:
        raise _ended_early("abort", "no output")
    return EngineStep(
        prompt_token_ids=prompt_token_ids,
        tensors=tensors,
        finish_reason=FinishReason.DIFFUSION_DONE,
        stop_reason=capture.stop_reason or FinishReason.DIFFUSION_DONE.value,
        scheduled_ns=capture.scheduled_ns,
    )


def join_tensors(parts: Iterable[torch.Tensor], default_name: str) -> dict[str, torch.Tensor]:
    """Unpack a request's worker outputs. Returns them by name; outputs of equal name are joined along their rows.

    Raises the error that a part packs (see packing.pack_error), and CorruptTensorError.
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
            length = _LENGTH.search(message)
            return PromptTooLongError(
                "the prompt with its media does not fit the engine's longest sequence",
                field="prompt",
                actual=f"{length[1]} tokens" if length else "",
            )
        if "encoder cache size" in message:
            kind = _MODALITY.search(message)
            return InvalidMediaError(
                "the medium has more tokens than the engine encodes at once; send a shorter or smaller one, or raise "
                "engineArgs.maxNumBatchedTokens",
                field=f"multi_modal_data.{kind[1]}" if kind else "multi_modal_data",
            )
        parameter = error.parameter or ""
        suffix = f": parameter {parameter}" if parameter else ""
        return InvalidRequestError(f"the engine refused the request{suffix}", field=parameter)
    if isinstance(error, VLLMClientError):
        return InvalidRequestError(f"the engine refused the request ({type(error).__name__})")
    # Log only the type: messages of vLLM may quote prompts.
    cause = "" if error.__cause__ is None else f" caused by {type(error.__cause__).__name__}"
    logger.error("a request failed in the engine: %s%s", type(error).__name__, cause)
    return ModelExecutionError(f"the engine failed on the request ({type(error).__name__})")


def _read_finish(finish_reason: str | None, stop_reason: str) -> FinishReason | None:
    if finish_reason is None:
        return None
    if finish_reason not in _FINISH_REASONS:
        raise _ended_early(finish_reason, stop_reason)
    return _FINISH_REASONS[finish_reason]


def _ended_early(finish_reason: str, stop_reason: str) -> OmniStageError:
    """Returns the error of a request that the scheduler ended. Stop reasons are a constant or `constant: message`."""
    constant, _, message = stop_reason.partition(": ")
    if constant == QUEUE_TIMEOUT:
        return QueueTimeoutError("the request waited too long in the engine's queue; retry later or add replicas")
    if constant == INVALID_PAYLOAD:
        return InvalidTensorError(message or "the request's payload cannot be read")
    if constant == FORM_COST:
        return InvalidRequestError(message, field=STRUCTURED)
    return ModelExecutionError(f"the engine ended the request early ({stop_reason or finish_reason})")


def _scheduled_ns(output: RequestOutput) -> int | None:
    scheduled = getattr(output.metrics, "scheduled_ts", 0.0)
    return int(scheduled * 1e9) if scheduled else None
