"""OmniEngineCoreRequest: the prompt and the parameters that vLLM gets for a request."""

from __future__ import annotations

import typing

import pytest
import torch
from vllm.inputs import TokensPrompt
from vllm.pooling_params import PoolingParams
from vllm.sampling_params import SamplingParams

from omni_stage.engine.requests.conflicts import EngineTraits
from omni_stage.engine.requests.request import OmniTokensPrompt
from omni_stage.payloads import OMNI_PAYLOAD_KEY, OMNI_ROWS_KEY, AdditionalInformationPayload
from support.engines.engine_requests import INFORMATION, TRAITS, embedded, pooled, sampled


def test_lowers_to_prompt_and_sampling_params():
    params = SamplingParams(max_tokens=5, stop_token_ids=[7])
    token_ids = [1, 2, 3]
    request = sampled(
        {"prompt_token_ids": token_ids},
        params,
        additional_information=INFORMATION,
        want_rows=True,
        suppress_token_ids=[9],
        stop_token_ids=[8],
    )
    prompt, lowered = request.lower(TRAITS)
    assert prompt == {"prompt_token_ids": [1, 2, 3]}
    assert prompt["prompt_token_ids"] is not token_ids
    assert lowered.max_tokens == 5
    assert lowered.extra_args.keys() == {OMNI_PAYLOAD_KEY, OMNI_ROWS_KEY}
    assert AdditionalInformationPayload.from_bytes(lowered.extra_args[OMNI_PAYLOAD_KEY]) == INFORMATION
    assert lowered.extra_args[OMNI_ROWS_KEY] is True
    assert lowered.logit_bias == {9: float("-inf")}
    assert lowered.stop_token_ids == [7, 8]
    assert lowered.all_stop_token_ids == {7, 8}
    # lower() leaves params unchanged, because the caller may use them for other requests.
    assert (params.extra_args, params.logit_bias, params.stop_token_ids) == (None, None, [7])


def test_a_limit_on_repeats_becomes_vllms_detection():
    from vllm.v1.core.sched.utils import check_sequence_repetition

    detection = sampled(repeat_limit=3).lower(TRAITS)[1].repetition_detection
    for token_ids, ends in (([5, 5], False), ([5, 5, 6], False), ([5, 6, 5, 6, 5, 6], False), ([6, 5, 5, 5], True)):
        assert check_sequence_repetition(token_ids, detection) is ends


def test_a_plain_request_carries_nothing_extra():
    prompt, params = sampled().lower(TRAITS)
    assert params.repetition_detection is None
    assert prompt == {"prompt_token_ids": [1, 2, 3]}
    assert params.extra_args is None
    assert params.logit_bias is None
    assert pooled().lower(TRAITS)[1].extra_kwargs is None


def test_lowers_to_prompt_and_pooling_params():
    prompt, params = pooled(additional_information=INFORMATION).lower(TRAITS)
    assert prompt == {"prompt_token_ids": [0]}, "a diffusion request without tokens gets one placeholder"
    assert isinstance(params, PoolingParams)
    assert AdditionalInformationPayload.from_bytes(params.extra_kwargs[OMNI_PAYLOAD_KEY]) == INFORMATION
    assert pooled({"prompt_token_ids": []}).lower(TRAITS)[0] == {"prompt_token_ids": [0]}
    assert pooled({"prompt_token_ids": [5, 6]}).lower(TRAITS)[0] == {"prompt_token_ids": [5, 6]}


def test_lowers_embeddings_to_a_tensor():
    prompt, _ = embedded().lower(TRAITS)
    assert prompt.keys() == {"prompt_embeds"}
    assert torch.equal(prompt["prompt_embeds"], torch.ones(3, 4))


def test_embeddings_are_cast_to_the_engines_type():
    traits = EngineTraits(max_model_len=16, hidden_size=4, embeds_dtype=torch.bfloat16)
    assert torch.equal(embedded().lower(traits)[0]["prompt_embeds"], torch.ones(3, 4, dtype=torch.bfloat16))


@pytest.mark.parametrize("request_of", [sampled, embedded, pooled])
def test_a_cache_salt_is_the_prompts(request_of):
    assert request_of(cache_salt="tenant").lower(TRAITS)[0]["cache_salt"] == "tenant"
    assert "cache_salt" not in request_of().lower(TRAITS)[0]


def test_text_and_media_pass_through():
    media = {"multi_modal_data": {"image": object()}, "multi_modal_uuids": {"image": ["image-1"]}}
    prompt = {"prompt": "hello", **media, "mm_processor_kwargs": {}}
    assert sampled(prompt).lower(TRAITS)[0] == prompt


def test_omni_tokens_prompt_extends_vllms():
    own = typing.get_type_hints(OmniTokensPrompt)
    assert typing.get_type_hints(TokensPrompt).keys() < own.keys()
    assert "additional_information" in own
    assert "additional_information" not in OmniTokensPrompt.__required_keys__
    prompt = OmniTokensPrompt(prompt_token_ids=[1], additional_information=INFORMATION)
    lowered, params = sampled(prompt).lower(TRAITS)
    assert lowered == {"prompt_token_ids": [1]}
    assert AdditionalInformationPayload.from_bytes(params.extra_args[OMNI_PAYLOAD_KEY]) == INFORMATION
