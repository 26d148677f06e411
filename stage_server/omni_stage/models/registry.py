"""The model families that this stage server knows, and their components by id.

A resource names a component by its id, FAMILY/NAME, and never by a Python path. Every folder next to this file that
holds a manifest.py is a built-in family. Packages that the image's builder installed provide further families through
the entry point group `omnipipeline.families` (name = the family's name, value = "module:FAMILY", a FamilyManifest). If
two packages provide different manifests for a name, or a package uses the name of a built-in family, the registry
raises ConfigurationError: neither family takes precedence.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.models.component import ComponentFactory
from omni_stage.models.manifest import ComponentEntry, FamilyManifest, TinyCheckpoint

ENTRY_POINT_GROUP: Final = "omnipipeline.families"
_MODELS: Final = "omni_stage.models"
_MANIFEST: Final = "manifest"
_ATTRIBUTE: Final = "FAMILY"
"""Name of the FamilyManifest in every built-in manifest module."""


class FamilyRegistry:
    """The built-in families and those from entry points. A family's manifest is imported when it is first used."""

    def __init__(self, plugins: Iterable[EntryPoint] = ()) -> None:
        """Raises ConfigurationError if two different manifests claim the same family name."""
        self._built_in = _list_built_in()
        self._plugins: dict[str, EntryPoint] = {}
        for plugin in plugins:
            self._add(plugin)

    def families(self) -> list[FamilyManifest]:
        """Returns every family, sorted by name. Raises ConfigurationError if a manifest cannot be loaded."""
        return [self._load(name) for name in sorted([*self._built_in, *self._plugins])]

    def built_in(self) -> list[FamilyManifest]:
        """Returns the families of this distribution, sorted by name."""
        return [self._load(name) for name in sorted(self._built_in)]

    def ids(self) -> list[str]:
        """Returns every known id, sorted. Raises ConfigurationError if a manifest cannot be loaded."""
        return sorted(entry.facts.id for family in self.families() for entry in family.components)

    def find(self, component_id: str) -> ComponentEntry | None:
        """Returns the component with exactly this id, or None. Only its own family's manifest is imported.

        Raises ConfigurationError if that manifest cannot be loaded.
        """
        name = component_id.split("/")[0]
        if name not in self._built_in and name not in self._plugins:
            return None
        return next((entry for entry in self._load(name).components if entry.facts.id == component_id), None)

    def component(self, component_id: str) -> ComponentEntry:
        """Returns the component with exactly this id. Raises ConfigurationError with the known ids."""
        entry = self.find(component_id)
        if entry is None:
            raise ConfigurationError(
                f"component {component_id!r} is not known; known components: {', '.join(self.ids())}",
                field="component",
            )
        return entry

    def factory(self, component_id: str) -> ComponentFactory:
        """Returns the factory of the component with exactly this id. Imports the factory's module.

        Raises ConfigurationError if the id is unknown, if the component has its own engine in place of a factory, or if
        the factory cannot be imported.
        """
        reference = self.component(component_id).factory
        if not reference:
            raise ConfigurationError(
                f"component {component_id!r} has an engine of its own; vLLM cannot run it", field="component"
            )
        factory: ComponentFactory = _load_callable(reference, f"the factory of component {component_id!r}")
        return factory

    def own_engine(self, component_id: str) -> Callable[[StageConfig], Any] | None:
        """Returns the function that makes a component's own StageEngine; None if vLLM runs the component.

        Imports the function's module. Raises ConfigurationError if the id is unknown or the import fails.
        """
        reference = self.component(component_id).engine
        if not reference:
            return None
        engine: Callable[[StageConfig], Any] = _load_callable(reference, f"the engine of component {component_id!r}")
        return engine

    def _add(self, plugin: EntryPoint) -> None:
        known = self._plugins.get(plugin.name)
        if plugin.name in self._built_in or (known is not None and known.value != plugin.value):
            other = "a built-in family" if known is None else f"entry point {known.value}"
            raise ConfigurationError(
                f"entry point {plugin.value} and {other} have the same name, {plugin.name!r}; rename or uninstall one",
                field="component",
            )
        self._plugins[plugin.name] = plugin

    def _load(self, name: str) -> FamilyManifest:
        reference = (
            f"{_MODELS}.{name}.{_MANIFEST}:{_ATTRIBUTE}" if name in self._built_in else self._plugins[name].value
        )
        loaded = resolve(reference, what=f"the manifest of model family {name!r}")
        if not isinstance(loaded, FamilyManifest) or loaded.name != name:
            raise ConfigurationError(f"{reference} is not a FamilyManifest named {name!r}", field="component")
        return loaded


def installed_families() -> FamilyRegistry:
    """Returns the families of this environment. Raises ConfigurationError on a conflict."""
    return FamilyRegistry(entry_points(group=ENTRY_POINT_GROUP))


def built_in_facts() -> dict[str, ComponentFacts]:
    """Returns the facts of every built-in component by id; `make schemas` exports them."""
    return {entry.facts.id: entry.facts for family in FamilyRegistry().built_in() for entry in family.components}


def weight_prefixes(component_id: str) -> tuple[str, ...]:
    """Returns the name prefixes of the tensors that the component reads; empty means all tensors.

    Does not import the component, because checkpoints are downloaded in a process without an engine. Returns an empty
    tuple for a component that this environment does not have, so that all its weights are downloaded.
    """
    entry = installed_families().find(component_id)
    return () if entry is None else entry.weight_prefixes


def weight_files(component_id: str) -> tuple[str, ...]:
    """Returns the patterns of the component's weights in other formats than safetensors. Does not import it either."""
    entry = installed_families().find(component_id)
    return () if entry is None else entry.weight_files


def tiny_checkpoints() -> dict[str, TinyCheckpoint]:
    """Returns the tiny checkpoints that can be written, by the family's name. Raises ConfigurationError."""
    return {
        family.name: family.tiny_checkpoint
        for family in installed_families().families()
        if family.tiny_checkpoint is not None
    }


def resolve(reference: str, *, what: str) -> object:
    """Returns the object that a manifest's "module:attribute" names. Raises ConfigurationError naming `what`."""
    module, _, attribute = reference.partition(":")
    try:
        found: object = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{what}, {reference}, cannot be loaded: {type(error).__name__}", field="component"
        ) from error
    return found


def _load_callable(reference: str, what: str) -> Any:
    loaded = resolve(reference, what=what)
    if not callable(loaded):
        raise ConfigurationError(f"{what} is not callable", field="component")
    return loaded


def _list_built_in() -> frozenset[str]:
    return frozenset(_iterate_built_in())


def _iterate_built_in() -> Iterator[str]:
    folder = Path(__file__).parent
    for module in pkgutil.iter_modules([str(folder)]):
        if module.ispkg and (folder / module.name / f"{_MANIFEST}.py").is_file():
            yield module.name
