"""OmniEngineCoreRequest: requests that are refused before an engine gets them, and features that exclude each other."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from vllm.sampling_params import SamplingParams, StructuredOutputsParams

from omni_stage.engine.requests.conflicts import CONFLICTS, EngineTraits, Feature, check_conflicts, find_conflicts
from omni_stage.errors import (
    InvalidRequestError,
    InvalidTensorError,
    NonFiniteTensorError,
    PromptTooLongError,
    RequestTooLargeError,
)
from omni_stage.payloads import OMNI_PAYLOAD_KEY, AdditionalInformationPayload, PayloadLimits, PromptEmbedsPayload
from support.engines.engine_requests import EMBEDS, INFORMATION, TRAITS, embedded, pooled, sampled
from support.tables import each_row

FORM = StructuredOutputsParams(choice=["a"])
STREAMED = EngineTraits(max_model_len=16, vocab_size=100, stream_fed=True)


class Refused(NamedTuple):
    request: Any
    traits: EngineTraits
    error: type[Exception]
    field: str


REFUSED = {
    "no id": Refused(replace(sampled(), request_id=""), TRAITS, InvalidRequestError, "request_id"),
    "no prompt": Refused(sampled({}), TRAITS, InvalidRequestError, "prompt"),
    "no tokens": Refused(sampled({"prompt_token_ids": []}), TRAITS, InvalidRequestError, "prompt_token_ids"),
    "unknown key": Refused(sampled({"prompt_token_ids": [1], "x": 1}), TRAITS, InvalidRequestError, "prompt"),
    "cache salt": Refused(sampled({"prompt": "a", "cache_salt": "s"}), TRAITS, InvalidRequestError, "prompt"),
    "negative token": Refused(sampled({"prompt_token_ids": [-1]}), TRAITS, InvalidRequestError, "prompt_token_ids"),
    "token beyond vocabulary": Refused(
        sampled({"prompt_token_ids": [100]}), TRAITS, InvalidRequestError, "prompt_token_ids"
    ),
    "fraction as token": Refused(sampled({"prompt_token_ids": [1.0]}), TRAITS, InvalidRequestError, "prompt_token_ids"),
    "boolean as token": Refused(sampled({"prompt_token_ids": [True]}), TRAITS, InvalidRequestError, "prompt_token_ids"),
    "huge token": Refused(
        sampled({"prompt_token_ids": [1 << 40]}),
        EngineTraits(max_model_len=16),
        InvalidRequestError,
        "prompt_token_ids",
    ),
    "suppressed beyond vocabulary": Refused(
        sampled(suppress_token_ids=[100]), TRAITS, InvalidRequestError, "suppress_token_ids"
    ),
    "stop beyond vocabulary": Refused(sampled(stop_token_ids=[100]), TRAITS, InvalidRequestError, "stop_token_ids"),
    "no room for output": Refused(
        sampled({"prompt_token_ids": [1] * 16}), TRAITS, PromptTooLongError, "prompt_token_ids"
    ),
    "long diffusion prompt": Refused(
        pooled({"prompt_token_ids": [1] * 17}), TRAITS, PromptTooLongError, "prompt_token_ids"
    ),
    "several samples": Refused(sampled(params=SamplingParams(n=2)), TRAITS, InvalidRequestError, "n"),
    "a caller's extra_args": Refused(
        sampled(params=SamplingParams(extra_args={"kv_transfer_params": {}})), TRAITS, InvalidRequestError, "extra_args"
    ),
    "a caller's payload": Refused(
        sampled(params=SamplingParams(extra_args={OMNI_PAYLOAD_KEY: b""})), TRAITS, InvalidRequestError, "extra_args"
    ),
    "embeddings and tokens": Refused(sampled(prompt_embeds=EMBEDS), TRAITS, InvalidRequestError, "prompt_embeds"),
    "embeddings of another width": Refused(
        sampled({}, prompt_embeds=PromptEmbedsPayload.from_tensor(torch.ones(3, 5))),
        TRAITS,
        InvalidTensorError,
        "prompt_embeds",
    ),
    "too many embeddings": Refused(
        sampled({}, prompt_embeds=PromptEmbedsPayload.from_tensor(torch.ones(16, 4))),
        TRAITS,
        PromptTooLongError,
        "prompt_embeds",
    ),
    "embeddings where none are taken": Refused(
        embedded(), EngineTraits(max_model_len=16), InvalidRequestError, "prompt_embeds"
    ),
    "embeddings past the payload": Refused(
        sampled({"prompt_embeds": torch.ones(3, 4)}), TRAITS, InvalidRequestError, "prompt_embeds"
    ),
    "embeddings with NaN": Refused(
        sampled(
            {},
            prompt_embeds=PromptEmbedsPayload.from_tensor(
                torch.full((1, 4), float("nan")), PayloadLimits(allow_non_finite=True)
            ),
        ),
        TRAITS,
        NonFiniteTensorError,
        "prompt_embeds",
    ),
    "information twice": Refused(
        sampled({"prompt_token_ids": [1], "additional_information": INFORMATION}, additional_information=INFORMATION),
        TRAITS,
        InvalidRequestError,
        "additional_information",
    ),
    "information of another kind": Refused(
        sampled({"prompt_token_ids": [1], "additional_information": {"x": [1]}}),
        TRAITS,
        InvalidRequestError,
        "additional_information",
    ),
    "information too large": Refused(
        sampled(additional_information=INFORMATION),
        EngineTraits(max_model_len=16, limits=PayloadLimits(max_payload_bytes=23)),
        RequestTooLargeError,
        "additional_information",
    ),
    "information with NaN": Refused(
        sampled(
            additional_information=AdditionalInformationPayload.from_mapping(
                {"x": [float("nan")]}, PayloadLimits(allow_non_finite=True)
            )
        ),
        TRAITS,
        NonFiniteTensorError,
        "additional_information.x",
    ),
    "embeddings and a penalty": Refused(
        embedded(SamplingParams(presence_penalty=0.5)), TRAITS, InvalidRequestError, "prompt_embeds"
    ),
    "embeddings and repetition penalty": Refused(
        embedded(SamplingParams(repetition_penalty=1.1)), TRAITS, InvalidRequestError, "prompt_embeds"
    ),
    "embeddings and captured rows": Refused(embedded(want_rows=True), TRAITS, InvalidRequestError, "prompt_embeds"),
    "embeddings beyond float16": Refused(
        sampled({}, prompt_embeds=PromptEmbedsPayload.from_tensor(torch.full((3, 4), 1e6))),
        EngineTraits(max_model_len=16, hidden_size=4, embeds_dtype=torch.float16),
        NonFiniteTensorError,
        "prompt_embeds",
    ),
    "streamed and frequency penalty": Refused(
        sampled(params=SamplingParams(frequency_penalty=0.5)), STREAMED, InvalidRequestError, "streamed input"
    ),
    "streamed and min_tokens": Refused(
        sampled(params=SamplingParams(min_tokens=2)), STREAMED, InvalidRequestError, "streamed input"
    ),
    "a stop token of the request outside the vocabulary": Refused(
        sampled(params=SamplingParams(stop_token_ids=[1, 100])), TRAITS, InvalidRequestError, "stop_token_ids"
    ),
    "a form whose end is ignored": Refused(
        sampled(params=SamplingParams(ignore_eos=True, structured_outputs=FORM)),
        TRAITS,
        InvalidRequestError,
        "ignore_eos",
    ),
    "diffusion with rows": Refused(pooled(want_rows=True), TRAITS, InvalidRequestError, "pooling_params"),
}


@each_row("name", REFUSED)
def test_refused_before_the_engine(name):
    request, traits, error, field = REFUSED[name]
    with pytest.raises(error) as caught:
        request.lower(traits)
    assert type(caught.value) is error
    assert caught.value.details.field == field


ALLOWED = {
    "penalties": (sampled(params=SamplingParams(presence_penalty=1, repetition_penalty=1.2)), TRAITS),
    "prompt that leaves room for one token": (sampled({"prompt_token_ids": [1] * 15}), TRAITS),
    "embeddings that leave room": (
        sampled({}, prompt_embeds=PromptEmbedsPayload.from_tensor(torch.ones(15, 4))),
        TRAITS,
    ),
    "streamed with repetition penalty and seed": (
        sampled(params=SamplingParams(repetition_penalty=1.1, seed=4)),
        STREAMED,
    ),
    "diffusion prompt of full length": (pooled({"prompt_token_ids": [1] * 16}), TRAITS),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name):
    request, traits = ALLOWED[name]
    request.lower(traits)


def test_pairs_of_features_are_refused_exactly_as_the_table_says():
    """Two features are refused together if and only if CONFLICTS lists the pair, or pairs one of them with itself."""
    table = {frozenset((conflict.first, conflict.second)) for conflict in CONFLICTS}
    assert len(table) == len(CONFLICTS), "a pair is in the table twice"
    for first, second in itertools.product(Feature, repeat=2):
        expected = {pair for pair in table if pair <= {first, second}}
        found = find_conflicts([first, second])
        assert {frozenset((conflict.first, conflict.second)) for conflict in found} == expected
        if expected:
            with pytest.raises(InvalidRequestError) as caught:
                check_conflicts([first, second])
            assert found[0].because in str(caught.value)
        else:
            check_conflicts([first, second])


PROBES = {
    Feature.PROMPT_EMBEDS: (embedded(), TRAITS),
    Feature.MULTIMODAL: (sampled({"prompt": "a", "multi_modal_data": {"image": 1}}), TRAITS),
    Feature.PENALTIES: (sampled(params=SamplingParams(repetition_penalty=1.1)), TRAITS),
    Feature.OUTPUT_PENALTIES: (sampled(params=SamplingParams(frequency_penalty=-0.5)), TRAITS),
    Feature.MULTIPLE_SAMPLES: (sampled(params=SamplingParams(n=2)), TRAITS),
    Feature.MIN_TOKENS: (sampled(params=SamplingParams(min_tokens=1)), TRAITS),
    Feature.STOP_STRINGS: (sampled(params=SamplingParams(stop=["x"])), TRAITS),
    Feature.IGNORE_EOS: (sampled(params=SamplingParams(ignore_eos=True)), TRAITS),
    Feature.FORM: (sampled(params=SamplingParams(structured_outputs=FORM)), TRAITS),
    Feature.PROMPT_LOGPROBS: (sampled(params=SamplingParams(prompt_logprobs=0)), TRAITS),
    Feature.POOLING: (pooled(), TRAITS),
    Feature.CAPTURED_ROWS: (sampled(want_rows=True), TRAITS),
    Feature.STREAM_FED: (sampled(), STREAMED),
}


def test_every_feature_is_recognised_and_none_by_default():
    assert sampled().features(TRAITS) == set()
    assert PROBES.keys() == set(Feature)
    for feature, (request, traits) in PROBES.items():
        implied = {Feature.PENALTIES} if feature is Feature.OUTPUT_PENALTIES else set()
        assert request.features(traits) == {feature} | implied
