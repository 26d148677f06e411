"""The light tests need no package that `make setup LIGHT=1` leaves out: they are what a newcomer runs first."""

from __future__ import annotations

import ast
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tools.light_tests import ROOT, imported, imports_of, list_light

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def requirements_of(name: str, extras: frozenset[str]) -> list[str]:
    if name == PROJECT["name"]:
        return [
            *PROJECT["dependencies"],
            *(text for extra in extras for text in PROJECT["optional-dependencies"][extra]),
        ]
    needed = [(text, Requirement(text).marker) for text in metadata.requires(name) or ()]
    return [
        text
        for text, marker in needed
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def installed_by_light_setup() -> set[str]:
    waiting = [(PROJECT["name"], frozenset({"operator", "stage", "gateway", "cli", "check"}))]  # as in tools/setup.sh
    seen = set[tuple[str, frozenset[str]]]()
    while waiting:
        item = waiting.pop()
        if item not in seen:
            seen.add(item)
            required = map(Requirement, requirements_of(*item))
            waiting += [(canonicalize_name(one.name), frozenset(one.extras)) for one in required]
    return {name for name, _ in seen}


def imported_by_light_tests() -> set[str]:
    sources = [(ROOT / file).read_text(encoding="utf-8") for file in list_light()]
    waiting, seen = [name for source in sources for name in imported(ast.walk(ast.parse(source)))], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += imports_of(name)
    return {name.partition(".")[0] for name in seen}


def test_light_tests_import_only_what_the_light_setup_installs() -> None:
    owners, light = metadata.packages_distributions(), installed_by_light_setup()
    found = {top: owners[top] for top in imported_by_light_tests() if top in owners}
    assert {"pytest", "openai"} <= found.keys()
    assert {top: names for top, names in found.items() if light.isdisjoint(map(canonicalize_name, names))} == {}
