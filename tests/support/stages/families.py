"""Manifests of model families that exist only in tests. Entry points can name them."""

from __future__ import annotations

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, describe

NO_MANIFEST = {"name": "n"}


def make_entry(component_id: str, factory: str = "omni_stage.models.generic.llm:build_component") -> ComponentEntry:
    """Returns an autoregressive component that reads a prompt."""
    return ComponentEntry(
        facts=describe(ComponentFacts(id=component_id, kind=EngineKind.AUTOREGRESSIVE)), factory=factory
    )


A = FamilyManifest(
    name="a", components=(make_entry("a/b"), make_entry("a/gone", "omni_stage.models.generic.llm:nothing"))
)
C = FamilyManifest(
    name="c",
    components=(make_entry("c/module", "no_such_module_at_all:f"), make_entry("c/value", f"{__name__}:NO_MANIFEST")),
)
