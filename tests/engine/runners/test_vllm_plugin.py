"""vLLM finds our model classes in every process, and registering them twice does no harm."""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points

import pytest

from omni_stage.models.plugin import list_model_classes, register
from omni_stage.models.qwen2_5_omni.manifest import FAMILY

pytestmark = pytest.mark.engine


def test_the_entry_point_is_installed() -> None:
    (plugin,) = [item for item in entry_points(group="vllm.general_plugins") if item.name == "omnipipeline"]
    assert plugin.load() is register


def test_registering_twice_changes_nothing() -> None:
    from vllm import ModelRegistry

    register()
    models = {name: ModelRegistry.models[name] for name in list_model_classes()}
    register()
    assert {name: ModelRegistry.models[name] for name in list_model_classes()} == models
    assert set(FAMILY.model_classes) <= set(models)


@pytest.mark.parametrize("path", list_model_classes().values())
def test_every_name_is_a_class(path: str) -> None:
    module, name = path.split(":")
    assert isinstance(getattr(importlib.import_module(module), name), type)
