"""Where in a pipeline a component can be used, according to its ComponentFacts."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.pipeline.components import built_in_components
from omni_proto.stage_config import DownstreamStage, EdgeMode, InputEdge, Modality, ModelSource, StageConfig
from omni_stage.engine.factory import check_placement
from omni_stage.errors import ConfigurationError

OMNI = "qwen2_5_omni"
FULL, STREAM = EdgeMode.FULL, EdgeMode.STREAM


def stage(component: str, source: str = "", mode: EdgeMode = FULL, readers: tuple[str, ...] = (), **more: Any) -> Any:
    below = [
        DownstreamStage(stage=f"reader{index}", target="t:1", component=reader, stages=[f"reader{index}"])
        for index, reader in enumerate(readers)
    ]
    return StageConfig(
        pipeline="p",
        stage="s",
        component=component,
        model=ModelSource(path="/m"),
        input=InputEdge(source=source, mode=mode) if source else None,
        downstream=below,
        **more,
    )


def check(config: StageConfig) -> None:
    check_placement(built_in_components()[config.component], config, built_in_components().get)


REFUSED: dict[str, tuple[StageConfig, str, str]] = {
    "thinker with a system prompt": (
        stage(f"{OMNI}/thinker", system_prompt="Be brief."),
        "systemPrompt",
        "takes no system prompt",
    ),
    "thinker reads a prompt": (stage(f"{OMNI}/thinker", "other"), "input", "only be the entry"),
    "llm reads a stream": (stage("generic/llm", "other", STREAM), "input.mode", "set the mode of its input to Full"),
    "talker is no entry": (stage(f"{OMNI}/talker"), "input", "needs an input"),
    "token2wav is no entry": (stage(f"{OMNI}/token2wav"), "input", "needs an input"),
    "thinker makes no audio": (stage(f"{OMNI}/thinker", outputs=[Modality.AUDIO]), "outputs", "it returns Text"),
    "talker returns nothing": (stage(f"{OMNI}/talker", "t", outputs=[Modality.TEXT]), "outputs", "it returns nothing"),
    "nothing reads token2wav": (
        stage(f"{OMNI}/token2wav", "talker", readers=("my/reader",)),
        "downstream",
        "publishes no tensors",
    ),
    "a talker reads no text": (
        stage("generic/llm", readers=(f"{OMNI}/talker",)),
        "downstream",
        f"publishes text, but component {OMNI}/talker of stage reader0 reads tensors {OMNI}/thinker2talker",
    ),
    "token2wav reads no thinker": (
        stage(f"{OMNI}/thinker", readers=(f"{OMNI}/token2wav",)),
        "downstream",
        f"stage reader0 reads tensors {OMNI}/talker2token2wav",
    ),
    "token2wav on two GPUs": (
        stage(f"{OMNI}/token2wav", "talker", tensor_parallel_size=2),
        "tensorParallelSize",
        "can use 1 GPU, not 2; lower resources.limits, and raise replicas",
    ),
    "an llm reads no thinker": (stage(f"{OMNI}/thinker", readers=("generic/llm",)), "downstream", "reads text"),
    "a thinker reads no text": (stage("generic/llm", readers=(f"{OMNI}/thinker",)), "downstream", "reads a prompt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    config, field, words = REFUSED[case]
    with pytest.raises(ConfigurationError, match=words) as caught:
        check(config)
    assert caught.value.details.field == field


ACCEPTED: dict[str, StageConfig] = {
    "thinker with a talker": stage(f"{OMNI}/thinker", readers=(f"{OMNI}/talker",), outputs=[Modality.TEXT]),
    "thinker with a reader that this image does not know": stage(f"{OMNI}/thinker", readers=("my/reader",)),
    "talker on a stream": stage(f"{OMNI}/talker", "thinker", STREAM, (f"{OMNI}/token2wav",)),
    "token2wav": stage(f"{OMNI}/token2wav", "talker", outputs=[Modality.AUDIO]),
    "thinker on two GPUs": stage(f"{OMNI}/thinker", tensor_parallel_size=2),
    "llm": stage("generic/llm", outputs=[Modality.TEXT]),
    "llm that answers another": stage("generic/llm", "llm", outputs=[Modality.TEXT], readers=("generic/llm",)),
}


@pytest.mark.parametrize("case", ACCEPTED)
def test_accepted(case: str) -> None:
    check(ACCEPTED[case])


def test_a_component_that_needs_its_whole_input() -> None:
    whole = built_in_components()[f"{OMNI}/talker"].model_copy(update={"streams_input": False})
    with pytest.raises(ConfigurationError, match="cannot start before its input is complete") as caught:
        check_placement(whole, stage(f"{OMNI}/talker", "thinker", STREAM), built_in_components().get)
    assert caught.value.details.field == "input.mode"
