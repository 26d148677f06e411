"""vLLM finds our model classes in every process, and registering them twice is no harm."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest

from omni_stage.models.plugin import MODELS, register
from omni_stage.models.qwen2_5_omni.model_configs import (
    TALKER_ARCHITECTURE,
    THINKER_ARCHITECTURE,
    TOKEN2WAV_ARCHITECTURE,
)

pytestmark = pytest.mark.engine


def test_the_entry_point_is_installed() -> None:
    (plugin,) = [item for item in entry_points(group="vllm.general_plugins") if item.name == "omnipipeline"]
    assert plugin.load() is register


def test_registering_twice_changes_nothing() -> None:
    from vllm import ModelRegistry

    register()
    models = {name: ModelRegistry.models[name] for name in MODELS}
    register()
    assert {name: ModelRegistry.models[name] for name in MODELS} == models
    assert {THINKER_ARCHITECTURE, TALKER_ARCHITECTURE, TOKEN2WAV_ARCHITECTURE} == set(MODELS)


@pytest.mark.parametrize("path", MODELS.values())
def test_every_name_is_a_class(path: str) -> None:
    module, name = path.split(":")
    assert isinstance(getattr(importlib.import_module(module), name), type)
