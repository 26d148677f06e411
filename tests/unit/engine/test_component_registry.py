"""The registry: exact ids, entry points, conflicts. Entry points are real ones, of this installation's modules."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from omni_proto.stage_config import ModelSource, StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.models.generic import llm
from omni_stage.models.registry import ENTRY_POINT_GROUP, ComponentRegistry, component_ids, get_component_factory

BUILT_IN = ["generic/llm", "qwen2_5_omni/talker", "qwen2_5_omni/thinker", "qwen2_5_omni/token2wav"]
FACTORY = "omni_stage.models.generic.llm:build_component"


def plugin(name: str, value: str = FACTORY) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP)


def test_built_in_ids() -> None:
    assert ComponentRegistry().ids() == BUILT_IN
    assert set(BUILT_IN) <= set(component_ids())


def test_factories() -> None:
    assert get_component_factory("generic/llm") is llm.build_component
    assert ComponentRegistry([plugin("my/llm")]).factory("my/llm") is llm.build_component


@pytest.mark.parametrize(
    "name",
    ["generic/LLM", "generic", "generic/llm ", "omni_stage.models.generic.llm:build_component", "os/system", ""],
)
def test_unknown_ids_are_told_the_known_ones(name: str) -> None:
    with pytest.raises(ConfigurationError, match="generic/llm") as caught:
        get_component_factory(name)
    assert caught.value.details.field == "component"


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        pytest.param([plugin("generic/llm")], "is built in", id="name of a built-in"),
        pytest.param([plugin("a/b"), plugin("a/b", "other.module:build")], "is also", id="two packages, one name"),
        pytest.param([plugin("notanid")], "must be named FAMILY/STAGE", id="no id"),
        pytest.param([plugin("A/b")], "must be named FAMILY/STAGE", id="capitals"),
    ],
)
def test_conflicts(plugins: list[EntryPoint], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ComponentRegistry(plugins)


def test_the_same_entry_point_twice_is_one() -> None:
    assert ComponentRegistry([plugin("a/b"), plugin("a/b")]).ids() == ["a/b", *BUILT_IN]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param("no_such_module_at_all:build", "ModuleNotFoundError", id="no module"),
        pytest.param("omni_stage.models.generic.llm:nothing", "AttributeError", id="no attribute"),
        pytest.param("omni_stage.models.generic.llm:COMPONENT_ID", "no factory", id="not callable"),
    ],
)
def test_entry_points_that_do_not_load(value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ComponentRegistry([plugin("a/b", value)]).factory("a/b")


def test_a_stage_file_cannot_name_a_python_path() -> None:
    with pytest.raises(ValueError, match="component"):
        StageConfig(pipeline="p", stage="s", component="os.path:join", model=ModelSource(path="/m"))
