"""What an engine can do, and combinations of request features that would crash it or be ignored by it: a table and pure
functions.

A crash would end the engine for all requests, so a request with such a combination is refused before the engine gets
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import torch

from omni_stage.errors import InvalidRequestError
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


class Feature(Enum):
    """A feature of a request or its engine that may conflict with another. Errors name the feature by its value."""

    PROMPT_EMBEDS = "prompt_embeds"
    MULTIMODAL = "multi_modal_data"
    PENALTIES = "presence_penalty, frequency_penalty or repetition_penalty"
    OUTPUT_PENALTIES = "presence_penalty or frequency_penalty"
    MULTIPLE_SAMPLES = "n"
    MIN_TOKENS = "min_tokens"
    STOP_STRINGS = "stop"
    IGNORE_EOS = "ignore_eos"
    FORM = "structured_outputs"
    PROMPT_LOGPROBS = "prompt_logprobs"
    POOLING = "pooling_params"
    CAPTURED_ROWS = "want_rows"
    STREAM_FED = "streamed input"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two features that a request must not combine, and the reason. If `first` and `second` are the same feature, a
    request must not use it at all."""

    first: Feature
    second: Feature
    because: str


CONFLICTS: Final[tuple[Conflict, ...]] = (
    Conflict(
        Feature.PROMPT_EMBEDS,
        Feature.PENALTIES,
        "penalties count prompt token ids, which embeddings do not have; set the penalties to 0 and repetition_penalty "
        "to 1 (the model's generation_config.json may set another)",
    ),
    Conflict(Feature.PROMPT_EMBEDS, Feature.CAPTURED_ROWS, "rows that another stage reads are made of token ids"),
    Conflict(Feature.PROMPT_EMBEDS, Feature.MULTIMODAL, "media are placed by prompt token ids"),
    Conflict(Feature.PROMPT_EMBEDS, Feature.PROMPT_LOGPROBS, "prompt logprobs are of prompt token ids"),
    Conflict(Feature.PROMPT_EMBEDS, Feature.POOLING, "a diffusion stage reads its input from additional_information"),
    Conflict(Feature.PROMPT_EMBEDS, Feature.STREAM_FED, "vLLM takes embeddings only as a whole"),
    Conflict(Feature.IGNORE_EOS, Feature.FORM, "the text would continue after its form ends; leave ignore_eos out"),
    Conflict(Feature.MULTIPLE_SAMPLES, Feature.MULTIPLE_SAMPLES, "a stage answers a request once; send it n times"),
    Conflict(Feature.POOLING, Feature.STREAM_FED, "a diffusion stage needs its complete input"),
    Conflict(Feature.POOLING, Feature.CAPTURED_ROWS, "a diffusion stage has no rows to capture"),
    Conflict(
        Feature.STREAM_FED,
        Feature.OUTPUT_PENALTIES,
        "with streamed input, earlier output counts as prompt, so the result would differ",
    ),
    Conflict(
        Feature.STREAM_FED,
        Feature.MIN_TOKENS,
        "with streamed input, earlier output counts as prompt, so the result would differ",
    ),
    Conflict(Feature.STREAM_FED, Feature.STOP_STRINGS, "vLLM refuses stop strings there; use stop_token_ids"),
    Conflict(Feature.STREAM_FED, Feature.PROMPT_LOGPROBS, "the prompt comes in parts"),
)
"""Sources: vLLM issue 57719 and the code of vLLM 0.32 (`v1/sample`, `v1/engine/async_llm.py`)."""


def find_conflicts(features: Iterable[Feature]) -> list[Conflict]:
    """Returns the conflicts among a request's features, in the table's order."""
    present = set(features)
    return [conflict for conflict in CONFLICTS if conflict.first in present and conflict.second in present]


def check_conflicts(features: Iterable[Feature]) -> None:
    """Refuse conflicting features. Raises InvalidRequestError, which names both features and the reason."""
    for conflict in find_conflicts(features):
        if conflict.first is conflict.second:
            message = f"{conflict.first.value} must be 1: {conflict.because}"
        else:
            message = f"{conflict.first.value} cannot be combined with {conflict.second.value}: {conflict.because}"
        raise InvalidRequestError(message, field=conflict.first.value)
