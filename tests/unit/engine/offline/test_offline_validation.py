"""The inputs and configurations that OmniLLM and StageLLM refuse before an engine gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from omni_proto.pipeline import parse_pipeline
from omni_proto.stage_config import InputEdge, ModelSource, SamplingDefaults, StageConfig
from omni_stage.engine.offline.inputs import compile_offline, pair_sampling, parse_prompt, parse_sampling, read_pipeline
from omni_stage.engine.offline.omni_llm import AsyncOmniLLM
from omni_stage.engine.offline.stage_llm import check_source
from omni_stage.errors import ConfigurationError, InvalidRequestError, NonFiniteTensorError
from omni_stage.models.component import ChatMessage, EdgeInput, TextPart, UserPrompt

ONE = SamplingDefaults(max_tokens=1)
CHAT = [ChatMessage("user", [TextPart("hi")])]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        pytest.param("hi", UserPrompt(text="hi"), id="text"),
        pytest.param([1, 2], UserPrompt(token_ids=[1, 2]), id="token ids"),
        pytest.param(CHAT, UserPrompt(messages=CHAT), id="chat"),
        pytest.param(UserPrompt(text="a"), UserPrompt(text="a"), id="as it is"),
    ],
)
def test_prompts(prompt: Any, expected: UserPrompt) -> None:
    assert parse_prompt(prompt) == expected


def test_embeddings_are_a_prompt() -> None:
    rows = torch.ones(3, 4)
    prompt = parse_prompt(rows)
    assert prompt.prompt_embeds is not None
    assert torch.equal(prompt.prompt_embeds.to_tensor(), rows)
    check_source(prompt, stage("a"))
    with pytest.raises(NonFiniteTensorError):
        parse_prompt(rows / 0)


@pytest.mark.parametrize("prompt", [b"hi", 3, None, ["hi"], [1, "a"], [True], {"text": "hi"}])
def test_what_is_no_prompt(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError, match="a prompt is"):
        parse_prompt(prompt)


@pytest.mark.parametrize(
    ("prompts", "sampling", "expected"),
    [
        pytest.param(["a", "b"], None, [None, None], id="none"),
        pytest.param(["a", "b"], {"s": ONE}, [{"s": ONE}, {"s": ONE}], id="one for all"),
        pytest.param(["a", "b"], [{"s": ONE}, None], [{"s": ONE}, None], id="one a prompt"),
    ],
)
def test_sampling_pairs_with_prompts(prompts: Any, sampling: Any, expected: Any) -> None:
    assert pair_sampling(prompts, sampling) == expected


@pytest.mark.parametrize(
    ("prompts", "sampling", "message"),
    [
        pytest.param([], None, "prompts is empty", id="no prompt"),
        pytest.param(["a"], [], "0 entries for 1 prompts", id="fewer samplings"),
        pytest.param(["a"], [None, None], "2 entries for 1 prompts", id="more samplings"),
        pytest.param(["a"], "greedy", "not str", id="text"),
        pytest.param(["a"], 3, "not int", id="number"),
    ],
)
def test_lists_that_do_not_match(prompts: Any, sampling: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        pair_sampling(prompts, sampling)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        pytest.param({"nobody": ONE}, "'nobody'; the stages are thinker, talker", id="unknown stage"),
        pytest.param({"thinker": {"top_p": 7}}, "top_p", id="out of range"),
        pytest.param({"thinker": {"topp": 1}}, "topp", id="unknown field"),
        pytest.param({"thinker": 3}, "must be SamplingDefaults", id="no mapping"),
        pytest.param([("thinker", ONE)], "mapping from stage names", id="pairs"),
    ],
)
def test_sampling_by_stage_is_checked(sampling: Any, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        parse_sampling(sampling, ["thinker", "talker"])


def test_sampling_by_stage() -> None:
    assert parse_sampling({"talker": {"max_tokens": 1}, "thinker": ONE}, ["thinker", "talker"]) == {
        "talker": ONE,
        "thinker": ONE,
    }
    assert parse_sampling(None, ["thinker"]) == {}


def stage(name: str, source: str | None = None) -> StageConfig:
    return StageConfig(
        pipeline="p",
        stage=name,
        component="a/b",
        model=ModelSource(path="/m"),
        input=InputEdge(source=source) if source else None,
    )


@pytest.mark.parametrize(
    ("source", "config", "message"),
    [
        pytest.param(UserPrompt(), stage("a"), "0 are set", id="no prompt"),
        pytest.param(UserPrompt(text="x", token_ids=[1]), stage("a"), "2 are set", id="two prompts"),
        pytest.param(UserPrompt(text=""), stage("a"), "prompt.text is empty", id="empty text"),
        pytest.param(UserPrompt(token_ids=[]), stage("a"), "prompt.token_ids is empty", id="no token"),
        pytest.param(UserPrompt(messages=[]), stage("a"), "prompt.messages is empty", id="no message"),
        pytest.param(
            UserPrompt(text="x"), stage("b", "a"), "reads the tensors of stage a", id="prompt to a later stage"
        ),
        pytest.param(EdgeInput({"x": torch.zeros(1)}), stage("a"), "reads a prompt", id="tensors to the entry"),
        pytest.param(EdgeInput({}), stage("b", "a"), "no tensors of its input stage", id="no tensors"),
    ],
)
def test_sources_of_a_stage(source: UserPrompt | EdgeInput, config: StageConfig, message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        check_source(source, config)


PIPELINE = """
apiVersion: omnipipeline.io/v1alpha1
kind: OmniPipeline
metadata: {name: text}
spec:
  model: {uri: hf://org/name}
  stages:
  - {name: llm, component: COMPONENT, outputs: [Text]}
"""


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"absent\.yaml"):
        read_pipeline("absent.yaml")


def test_a_remote_model_needs_a_directory() -> None:
    with pytest.raises(ConfigurationError, match="not a directory on this machine"):
        compile_offline(parse_pipeline(PIPELINE.replace("COMPONENT", "generic/llm")), None)


def test_directories_may_be_given_by_stage() -> None:
    pipeline = parse_pipeline(PIPELINE.replace("COMPONENT", "generic/llm"))
    assert [config.model.path for config in compile_offline(pipeline, {"llm": Path("/models/llm")})] == ["/models/llm"]
    with pytest.raises(ConfigurationError, match="names no stage; the stages are llm"):
        compile_offline(pipeline, {"lmm": "/models/llm"})


def test_half_a_gpu_is_a_configuration_error() -> None:
    pipeline = parse_pipeline(PIPELINE.replace("COMPONENT", "generic/llm, resources: {limits: {nvidia.com/gpu: 500m}}"))
    with pytest.raises(ConfigurationError, match="must be a whole number, found 500m"):
        compile_offline(pipeline, "/nowhere")


def test_an_unknown_component_is_refused_before_anything_loads() -> None:
    pipeline = parse_pipeline(PIPELINE.replace("COMPONENT", "generic/nothing"))
    with pytest.raises(ConfigurationError, match="generic/nothing"):
        AsyncOmniLLM(pipeline, model_dir="/nowhere")


def test_a_missing_checkpoint_is_refused_before_anything_loads() -> None:
    pipeline = parse_pipeline(PIPELINE.replace("COMPONENT", "generic/llm"))
    with pytest.raises(ConfigurationError, match=r"no config\.json"):
        AsyncOmniLLM(pipeline, model_dir="/nowhere")
