"""build_component refuses a configuration that the component cannot fulfil. The error names the field."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_proto.stage_config import StageConfig
from omni_stage.engine import factory, vllm_engine
from omni_stage.engine.factory import build_component
from omni_stage.errors import ConfigurationError

BELOW = {"stage": "next", "target": "127.0.0.1:1", "component": "qwen2_5_omni/talker", "stages": ["next"]}
AUDIO_BELOW = {**BELOW, "component": "qwen2_5_omni/token2wav"}
FROM_ABOVE = {"source": "above"}


@pytest.fixture(scope="module")
def checkpoint(make_tiny_checkpoint: Callable[..., Path]) -> Path:
    return make_tiny_checkpoint(0)


def configure(checkpoint: Path, stage: str, **settings: Any) -> StageConfig:
    component, model = f"qwen2_5_omni/{stage}", {"path": str(checkpoint)}
    return StageConfig.model_validate(
        {"pipeline": "p", "stage": stage, "component": component, "model": model, **settings}
    )


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        ("thinker", {"outputs": ["Text"], "downstream": [BELOW]}),
        ("talker", {"input": FROM_ABOVE, "downstream": [AUDIO_BELOW]}),
        ("talker", {"input": {**FROM_ABOVE, "mode": "Stream"}, "downstream": [AUDIO_BELOW]}),
        ("token2wav", {"input": FROM_ABOVE, "outputs": ["Audio"]}),
    ],
)
def test_what_a_component_can_do(checkpoint: Path, stage: str, settings: dict[str, Any]) -> None:
    assert build_component(configure(checkpoint, stage, **settings)).facts.id == f"qwen2_5_omni/{stage}"


@pytest.mark.parametrize(
    ("stage", "settings", "field", "message"),
    [
        ("thinker", {"outputs": ["Text", "Audio"]}, "outputs", "does not return Audio; it returns Text"),
        ("talker", {"input": FROM_ABOVE, "outputs": ["Audio"]}, "outputs", "does not return Audio; it returns nothing"),
        ("thinker", {"input": FROM_ABOVE, "outputs": ["Text"]}, "input", "reads a prompt"),
        ("talker", {"downstream": [BELOW]}, "input", "needs an input"),
        ("token2wav", {"outputs": ["Audio"]}, "input", "needs an input"),
        ("token2wav", {"input": FROM_ABOVE, "downstream": [BELOW]}, "downstream", "publishes no tensors"),
        ("thinker", {"downstream": [AUDIO_BELOW]}, "downstream", "publishes tensors qwen2_5_omni/thinker2talker"),
    ],
)
def test_what_it_cannot_do(checkpoint: Path, stage: str, settings: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        build_component(configure(checkpoint, stage, **settings))
    assert caught.value.details.field == field


@pytest.mark.parametrize(
    ("on_cpu", "alone", "shares"), [(True, True, True), (True, False, True), (False, True, True), (False, False, False)]
)
def test_on_a_gpu_several_engines_never_share_a_process(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: bool, alone: bool, shares: bool
) -> None:
    """They cannot, because vLLM has one workspace for each process, and torch one limit of GPU memory."""
    built: list[bool] = []
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setattr(vllm_engine.current_platform, "is_cpu", lambda: on_cpu)
    monkeypatch.setattr(
        vllm_engine, "VllmStageEngine", lambda config, component, *, in_process: built.append(in_process)
    )
    factory.build_stage_engine(configure(checkpoint, "thinker", outputs=["Text"]), in_process=True, alone=alone)
    assert built == [shares]
