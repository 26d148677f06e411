"""The registry of model families: exact ids, entry points, conflicts.

The tests' entry points name objects in support.stages.families.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import Modality, ModelSource, StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.models.generic import llm
from omni_stage.models.manifest import ComponentEntry, FamilyManifest
from omni_stage.models.registry import ENTRY_POINT_GROUP, FamilyRegistry, installed_families
from omni_stage.models.sim.engine import build_engine
from omni_stage.models.sim.manifest import TALKER
from support.stages.families import make_entry

BUILT_IN = [
    "asr/whisper",
    "generic/llm",
    *(f"qwen2_5_omni/{name}" for name in ("talker", "thinker", "token2wav")),
    *(f"qwen3_omni/{name}" for name in ("code2wav", "talker", "thinker")),
    *(f"sim/{name}" for name in ("decoder", "talker", "thinker")),
    "voice/vits",
]


def plugin(name: str, attribute: str = "A") -> EntryPoint:
    return EntryPoint(name=name, value=f"support.stages.families:{attribute}", group=ENTRY_POINT_GROUP)


def test_built_in_ids() -> None:
    assert FamilyRegistry().ids() == BUILT_IN
    assert set(BUILT_IN) <= set(installed_families().ids())


def test_factories() -> None:
    assert installed_families().factory("generic/llm") is llm.build_component
    assert FamilyRegistry([plugin("a")]).factory("a/b") is llm.build_component


def test_a_component_brings_its_own_engine_or_a_factory_for_vllms() -> None:
    """A component's entry names either an engine of its own, or a factory whose component vLLM runs."""
    families = installed_families()
    assert families.own_engine("generic/llm") is None
    assert families.own_engine("sim/talker") is build_engine
    with pytest.raises(ConfigurationError, match="an engine of its own"):
        families.factory("sim/talker")
    for both in ({}, {"factory": "a:b", "engine": "a:b"}):
        with pytest.raises(ConfigurationError, match="needs a factory, or an engine of its own"):
            FamilyManifest(name="sim", components=(ComponentEntry(facts=TALKER, **both),))


@pytest.mark.parametrize(
    "name", ["generic/LLM", "generic", "generic/llm ", "omni_stage.models.generic.llm:build_component", "os/system", ""]
)
def test_errors_of_unknown_ids_list_the_known_ones(name: str) -> None:
    """The error for an unknown id lists the known ids."""
    with pytest.raises(ConfigurationError, match="generic/llm") as caught:
        installed_families().factory(name)
    assert caught.value.details.field == "component"


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        pytest.param([plugin("generic")], "a built-in family", id="name of a built-in"),
        pytest.param([plugin("a"), plugin("a", "C")], "have the same name", id="two packages, one name"),
    ],
)
def test_conflicts(plugins: list[EntryPoint], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FamilyRegistry(plugins)


def test_the_same_entry_point_twice_is_one() -> None:
    assert FamilyRegistry([plugin("a"), plugin("a")]).ids() == ["a/b", "a/gone", *BUILT_IN]


@pytest.mark.parametrize(
    ("component_id", "plugins", "message"),
    [
        pytest.param("n/b", [plugin("n", "NO_MANIFEST")], "is not a FamilyManifest named 'n'", id="no manifest"),
        pytest.param("n/b", [plugin("n", "A")], "is not a FamilyManifest named 'n'", id="of another name"),
        pytest.param("n/b", [plugin("n", "GONE")], "AttributeError", id="no attribute"),
        pytest.param("a/gone", [plugin("a")], "AttributeError", id="no function"),
        pytest.param("c/module", [plugin("c", "C")], "ModuleNotFoundError", id="no module"),
        pytest.param("c/value", [plugin("c", "C")], "is not callable", id="not callable"),
    ],
)
def test_what_cannot_be_loaded(component_id: str, plugins: list[EntryPoint], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        FamilyRegistry(plugins).factory(component_id)


def test_a_broken_package_leaves_other_families_alone() -> None:
    registry = FamilyRegistry([plugin("n", "GONE")])
    assert registry.factory("generic/llm") is llm.build_component


def test_a_stage_file_cannot_name_a_python_path() -> None:
    with pytest.raises(ValueError, match="component"):
        StageConfig(pipeline="p", stage="s", component="os.path:join", model=ModelSource(path="/m"))


MALFORMED = {
    "capitals": {"name": "A", "components": ()},
    "another family's id": {"name": "a", "components": (make_entry("b/c"),)},
    "one id twice": {"name": "a", "components": (make_entry("a/c"), make_entry("a/c"))},
    "a path without attribute": {"name": "a", "components": (make_entry("a/c", "module.only"),)},
    "a transcript of no audio": {
        "name": "a",
        "components": (
            ComponentEntry(
                facts=ComponentFacts(id="a/c", kind=EngineKind.AUTOREGRESSIVE, outputs=(Modality.TRANSCRIPT,)),
                factory="m:f",
            ),
        ),
    },
    "a class that is no reference": {"name": "a", "components": (), "model_classes": {"A": "a.b.C"}},
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_manifests(case: str) -> None:
    with pytest.raises(ConfigurationError, match="malformed"):
        FamilyManifest(**MALFORMED[case])


def test_manifests_import_no_engine() -> None:
    code = (
        "import sys; from omni_stage.models.registry import installed_families, weight_prefixes;"
        "installed_families().ids(); weight_prefixes('generic/llm');"
        "print([name for name in ('torch', 'vllm', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
