"""Engine requests for sampling and for pooling, optionally with prompt embeddings or additional information."""

from __future__ import annotations

from typing import Any

import torch
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams

from omni_stage.engine.requests.conflicts import EngineTraits
from omni_stage.engine.requests.request import OmniEngineCoreRequest
from omni_stage.models.component import EngineInput
from omni_stage.payloads import AdditionalInformationPayload, PromptEmbedsPayload

TRAITS = EngineTraits(max_model_len=16, vocab_size=100, hidden_size=4)
INFORMATION = AdditionalInformationPayload.from_mapping({"x": torch.ones(2, 3)})
EMBEDS = PromptEmbedsPayload.from_tensor(torch.ones(3, 4))


def sampled(prompt: Any = None, params: SamplingParams | None = None, **kwargs: Any) -> OmniEngineCoreRequest:
    prompt = {"prompt_token_ids": [1, 2, 3]} if prompt is None else prompt
    return _request(prompt, SamplingParams() if params is None else params, **kwargs)


def embedded(params: SamplingParams | None = None, **kwargs: Any) -> OmniEngineCoreRequest:
    return sampled({}, params, prompt_embeds=EMBEDS, **kwargs)


def pooled(prompt: Any = None, **kwargs: Any) -> OmniEngineCoreRequest:
    return _request(prompt or {}, PoolingParams(), **kwargs)


def _request(
    prompt: Any, params: Any, *, want_rows: bool = False, cache_salt: str = "", **fields: Any
) -> OmniEngineCoreRequest:
    given = EngineInput(prompt=prompt, **fields)
    return OmniEngineCoreRequest(request_id="r", input=given, params=params, want_rows=want_rows, cache_salt=cache_salt)
