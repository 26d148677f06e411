"""What a stage with streamed input needs of its component, its settings and its KV cache."""

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
from omni_stage.vllm_adapter.core.interface import count_sessions


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


SESSIONS = {
    "as many as fit at full length": ((33, None), 4),
    "one block is vLLM's own": ((32, None), 3),
    "a length that fills its last block partly": ((41, None, 250), 5),
    "never more than the batch": ((1000, None), 8),
    "what vLLM counts, where layers differ": ((1000, 600), 2),
    "always one": ((8, None), 1),
    "no KV at all": ((None, None), 8),
}


@pytest.mark.parametrize("case", SESSIONS)
def test_sessions_that_the_kv_holds(engine_config: Callable[..., Any], case: str) -> None:
    arguments, expected = SESSIONS[case]
    assert count_sessions(engine_config(*arguments)) == expected
