"""Sampling parameters: which of request, stage and component wins, what a stage refuses, and what vLLM gets."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.requests.sampling import check_stage_sampling, resolve_sampling, sampling_kwargs
from omni_stage.errors import InvalidRequestError
from omni_stage.models.manifest import describe

S = SamplingDefaults
NONE = SamplingDefaults()


@pytest.mark.parametrize(
    ("request_", "seed", "config", "component", "expected"),
    [
        pytest.param(None, None, NONE, NONE, NONE, id="nothing said"),
        pytest.param(S(top_p=0.5), None, S(top_p=0.6), S(top_p=0.7), S(top_p=0.5), id="the request wins"),
        pytest.param(None, None, S(top_p=0.6), S(top_p=0.7), S(top_p=0.6), id="then the stage's default"),
        pytest.param(None, None, NONE, S(top_p=0.7), S(top_p=0.7), id="then the component's"),
        pytest.param(S(temperature=0), None, S(temperature=1), NONE, S(temperature=0), id="zero is a value"),
        pytest.param(S(ignore_eos=False), None, S(ignore_eos=True), NONE, S(ignore_eos=False), id="false is a value"),
        pytest.param(None, 5, S(seed=6), S(seed=7), S(seed=5), id="the request's one seed wins over defaults"),
        pytest.param(S(seed=4), 5, S(seed=6), NONE, S(seed=4), id="the stage's own seed wins over the one seed"),
        pytest.param(
            S(top_k=3),
            1,
            S(min_p=0.1),
            S(top_k=9, stop=["x"]),
            S(top_k=3, seed=1, min_p=0.1, stop=["x"]),
            id="by field",
        ),
    ],
)
def test_resolve_sampling(
    request_: SamplingDefaults | None,
    seed: int | None,
    config: SamplingDefaults,
    component: SamplingDefaults,
    expected: SamplingDefaults,
) -> None:
    assert resolve_sampling(request_, seed=seed, config_default=config, component_default=component) == expected


AR, DIFFUSION, DECODER = EngineKind


def facts(kind: EngineKind, writes_text: bool) -> ComponentFacts:
    return describe(ComponentFacts(id="test/stage", kind=kind, writes_text=writes_text, streams_input=True))


@pytest.mark.parametrize(
    ("sampling", "kind", "writes_text", "field"),
    [
        pytest.param(S(stop=["."]), AR, False, "stop", id="stop text, but no text"),
        pytest.param(S(num_inference_steps=3), AR, True, "num_inference_steps", id="solver steps of a text stage"),
        pytest.param(S(guidance_scale=1), AR, True, "guidance_scale", id="guidance of a text stage"),
        pytest.param(S(temperature=1), DIFFUSION, False, "temperature", id="temperature of a diffusion stage"),
        pytest.param(S(max_tokens=1), DIFFUSION, False, "max_tokens", id="tokens of a diffusion stage"),
        pytest.param(S(num_inference_steps=4), DECODER, False, "num_inference_steps", id="solver steps of a decoder"),
        pytest.param(S(min_tokens=5, max_tokens=4), AR, True, "min_tokens", id="more than the most"),
    ],
)
def test_refuses_by_name(sampling: SamplingDefaults, kind: EngineKind, writes_text: bool, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field) as caught:
        check_stage_sampling(sampling, facts(kind, writes_text), is_streamed=False, field="start.sampling[a]")
    assert caught.value.details.field == f"start.sampling[a].{field}"


@pytest.mark.parametrize(
    ("sampling", "kind", "writes_text"),
    [
        pytest.param(S(stop=["."], temperature=2, top_k=-1, seed=1), AR, True, id="text stage"),
        pytest.param(S(stop_token_ids=[1], min_tokens=1, presence_penalty=1), AR, False, id="codec stage"),
        pytest.param(S(seed=1, num_inference_steps=10, guidance_scale=0.5), DIFFUSION, False, id="diffusion stage"),
    ],
)
def test_accepts(sampling: SamplingDefaults, kind: EngineKind, writes_text: bool) -> None:
    check_stage_sampling(sampling, facts(kind, writes_text), is_streamed=False)


@pytest.mark.parametrize(
    ("sampling", "generation", "prompt_len", "expected"),
    [
        pytest.param(NONE, {}, 10, {"max_tokens": 90}, id="as many as fit"),
        pytest.param(NONE, {}, None, {"max_tokens": None}, id="length unknown: vLLM fills in what fits"),
        pytest.param(S(max_tokens=500), {}, 10, {"max_tokens": 90}, id="narrowed to what fits"),
        pytest.param(S(max_tokens=500), {}, None, {"max_tokens": 100}, id="narrowed to the longest sequence"),
        pytest.param(S(max_tokens=5), {"max_tokens": 7}, 10, {"max_tokens": 5}, id="the request over the checkpoint"),
        pytest.param(NONE, {"max_tokens": 7, "top_p": 0.8}, 10, {"max_tokens": 7, "top_p": 0.8}, id="the checkpoint's"),
        pytest.param(S(top_k=-1), {"top_k": 20}, 10, {"max_tokens": 90, "top_k": 0}, id="-1 turns top_k off"),
        pytest.param(S(min_tokens=95), {}, 10, {"max_tokens": 90, "min_tokens": 90}, id="min_tokens narrows along"),
        pytest.param(NONE, {}, 100, {"max_tokens": 1}, id="never below one"),
    ],
)
def test_sampling_kwargs(
    sampling: SamplingDefaults, generation: dict[str, Any], prompt_len: int | None, expected: dict[str, Any]
) -> None:
    kwargs = sampling_kwargs(
        sampling, generation_defaults=generation, max_model_len=100, prompt_len=prompt_len, writes_text=True
    )
    assert kwargs == {**expected, "detokenize": True}


def test_tokens_that_are_no_text_are_not_detokenized() -> None:
    kwargs = sampling_kwargs(NONE, generation_defaults={}, max_model_len=9, prompt_len=1, writes_text=False)
    assert kwargs["detokenize"] is False
