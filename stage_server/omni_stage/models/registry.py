"""The components that this stage server knows, by id.

A resource names a component by its id and never by a Python path: built-in ids are listed here, further ones come from
packages that the image's builder installed, through the entry point group `omni_stage.components` (name = id, value =
a ComponentFactory). An id with two factories is refused, whoever was first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points

from omni_stage.errors import ConfigurationError
from omni_stage.models.component import ComponentFactory

ENTRY_POINT_GROUP = "omni_stage.components"
FACTORY_NAME = "build_component"
"""Every built-in module below has this function: build_component(config: StageConfig) -> Component."""

_BUILT_IN: dict[str, str] = {
    "generic/llm": "omni_stage.models.generic.llm",
    "qwen2_5_omni/thinker": "omni_stage.models.qwen2_5_omni.thinker",
    "qwen2_5_omni/talker": "omni_stage.models.qwen2_5_omni.talker",
    "qwen2_5_omni/token2wav": "omni_stage.models.qwen2_5_omni.token2wav",
}
_ID = re.compile(r"[a-z0-9_]+/[a-z0-9_]+")


class ComponentRegistry:
    """Built-in components and those of entry points. Nothing is imported before its factory is asked for."""

    def __init__(self, plugins: Iterable[EntryPoint] = ()) -> None:
        """Raises ConfigurationError if an entry point's name is not an id, or is taken."""
        self._plugins: dict[str, EntryPoint] = {}
        for plugin in plugins:
            self._add(plugin)

    def ids(self) -> list[str]:
        """Every known id, sorted."""
        return sorted([*_BUILT_IN, *self._plugins])

    def factory(self, component_id: str) -> ComponentFactory:
        """The factory of the component with exactly this id.

        Raises ConfigurationError: unknown id, or a factory that cannot be imported.
        """
        self.require(component_id)
        if component_id in _BUILT_IN:
            loaded = getattr(import_module(_BUILT_IN[component_id]), FACTORY_NAME)
        else:
            loaded = _load_plugin(component_id, self._plugins[component_id])
        factory: ComponentFactory = loaded
        return factory

    def require(self, component_id: str) -> None:
        """Raises ConfigurationError, with the known ids, unless there is a component with exactly this id."""
        if component_id not in _BUILT_IN and component_id not in self._plugins:
            raise ConfigurationError(
                f"component {component_id!r} is not known; known components: {', '.join(self.ids())}",
                field="component",
            )

    def _add(self, plugin: EntryPoint) -> None:
        if not _ID.fullmatch(plugin.name):
            raise ConfigurationError(
                f"entry point {plugin.name!r} of group {ENTRY_POINT_GROUP} must be named FAMILY/STAGE "
                "in lower-case letters, digits and underscores",
                field="component",
            )
        known = self._plugins.get(plugin.name)
        if plugin.name in _BUILT_IN or (known is not None and known.value != plugin.value):
            other = "is built in" if known is None else f"is also {known.value}"
            raise ConfigurationError(
                f"component {plugin.name!r} of entry point {plugin.value} {other}; uninstall or rename one of the two",
                field="component",
            )
        self._plugins[plugin.name] = plugin


def get_component_factory(component_id: str) -> ComponentFactory:
    """The factory of a component, entry points of this environment included. Raises ConfigurationError."""
    return ComponentRegistry(entry_points(group=ENTRY_POINT_GROUP)).factory(component_id)


def require_component(component_id: str) -> None:
    """Raises ConfigurationError unless this environment has the component. Imports nothing of it."""
    ComponentRegistry(entry_points(group=ENTRY_POINT_GROUP)).require(component_id)


def component_ids() -> list[str]:
    """Ids of every component of this environment, sorted. Raises ConfigurationError on a conflict."""
    return ComponentRegistry(entry_points(group=ENTRY_POINT_GROUP)).ids()


def _load_plugin(component_id: str, plugin: EntryPoint) -> object:
    try:
        loaded: object = plugin.load()
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"component {component_id!r} cannot be loaded from entry point {plugin.value}: {type(error).__name__}",
            field="component",
        ) from error
    if not callable(loaded):
        raise ConfigurationError(
            f"entry point {plugin.value} of component {component_id!r} is no factory (not callable)", field="component"
        )
    return loaded
