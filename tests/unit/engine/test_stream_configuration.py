"""What streamed input requires of a stage's component, its default sampling and its KV cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_proto.stage_config import EdgeMode, InputEdge, ModelSource, SamplingDefaults, StageConfig
from omni_stage.engine import factory
from omni_stage.engine.vllm_engine import VllmStageEngine
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import TakesStreams
from omni_stage.vllm_adapter.core.interface import find_session_room
from omni_stage.vllm_adapter.scheduling.sessions import SessionRoom


def stage(checkpoint: Path, name: str, **settings: Any) -> StageConfig:
    source = {"talker": "thinker", "token2wav": "talker"}[name]
    return StageConfig(
        pipeline="test",
        stage=name,
        component=f"qwen2_5_omni/{name}",
        model=ModelSource(path=str(checkpoint)),
        input=InputEdge(source=source, mode=EdgeMode.STREAM),
        **settings,
    )


@pytest.mark.parametrize("name", ["talker", "token2wav"])
def test_these_components_take_streams(tiny_checkpoint: Path, name: str) -> None:
    assert isinstance(factory.build_component(stage(tiny_checkpoint, name)), TakesStreams)


@pytest.mark.parametrize("name", ["min_tokens", "presence_penalty", "frequency_penalty"])
def test_defaults_that_cannot_be_honoured_fail_at_start(tiny_checkpoint: Path, name: str) -> None:
    config = stage(tiny_checkpoint, "talker", default_sampling=SamplingDefaults(**{name: 1}))
    with pytest.raises(ConfigurationError, match=name) as caught:
        VllmStageEngine(config, factory.build_component(config), in_process=True)
    assert caught.value.details.field == f"defaultSampling.{name}"


@pytest.fixture
def engine_config() -> Callable[..., Any]:
    def build(blocks: int | None, size: int | None, length: int = 256, seqs: int = 8) -> Any:
        return SimpleNamespace(
            cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=32, kv_cache_size_tokens=size),
            scheduler_config=SimpleNamespace(max_num_seqs=seqs),
            model_config=SimpleNamespace(max_model_len=length),
        )

    return build


# name: ((blocks of 32 tokens, vLLM's kv_cache_size_tokens, max_model_len if not 256), expected room)
ROOMS = {
    "all blocks but vLLM's own": ((33, None), SessionRoom(8, 32, 32)),
    "vLLM's count says the same": ((33, 1056), SessionRoom(8, 32, 32)),
    "and where the longest sequence fills its last block partly": ((41, 41 * 250 // 8, 250), SessionRoom(8, 40, 32)),
    "layers that differ: sequences of full length only": ((1000, 600), SessionRoom(8, 16, 32, minimum_tokens=256)),
    "one block less where they would just fit": ((64, 1024), SessionRoom(8, 24, 32, minimum_tokens=256)),
    "always one": ((1000, 200), SessionRoom(8, 8, 32, minimum_tokens=256)),
    "no KV at all": ((None, None), SessionRoom(8)),
}


@pytest.mark.parametrize("case", ROOMS)
def test_what_sessions_can_fill(engine_config: Callable[..., Any], case: str) -> None:
    """find_session_room derives the room for sessions from vLLM's cache, scheduler and model configuration."""
    arguments, expected = ROOMS[case]
    assert find_session_room(engine_config(*arguments)) == expected
