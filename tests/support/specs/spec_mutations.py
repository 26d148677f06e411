"""Random edits of valid pipelines, to compare the verdicts of two validators."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

from support.specs.spec_edits import Document, make
from support.specs.spec_table import BAD, GOOD

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 16, 64, 65, 101, 1000, 1001, 2**31, 2**53, 2**63 - 1024, 0.5, 1.5, 1e300),
    *("", "a", "b", "thinker", "talker", "A", "a-b", "a b", "a\nb", "é", "1", "0", "0%", "25%", "101%", "64", "x" * 64),
    *("500m", "1Gi", "1e3", "-1", "hf://a/b", "pvc://a/../b", "file:///a", "Text", "Full", "Exists", "In", "Equal"),
    *("kubernetes.io/x", "nvidia.com/gpu", "BlueGreen", "auto", "NoExecute", "x" * 600, [], {}, [None], [{}], {"a": 1}),
    *({"a": "b"}, ["a"], ["a", "a"], [1], [{"name": "a"}], [{"from": "thinker"}], {"nvidia.com/gpu": 1}, {"cpu": "2"}),
)


def mutated(seed: int, count: int) -> Iterator[Document]:
    """Yields valid pipelines with one or two random edits. The same seed gives the same pipelines."""
    choose = random.Random(seed)
    right = [make(*edits) for edits in GOOD.values()]
    others = _fields([*right, *(make(*bad.edits) for bad in BAD.values())])
    for _ in range(count):
        document = copy.deepcopy(choose.choice(right))
        for _ in range(choose.randint(1, 2)):
            _mutate(document.get("spec"), choose, others)
        yield document


def _mutate(spec: Any, choose: random.Random, others: list[tuple[Any, Any]]) -> None:
    places = list(_places(spec))
    if not places:
        return
    parent, key = choose.choice(places)
    # Values that the tables use for the same key elsewhere are more likely to be valid.
    same = [value for name, value in others if name == key]
    kind = choose.choices(("remove", "repeat", "replace", "add", "any"), (3, 1, 6, 1, 2))[0]
    if kind == "remove":
        del parent[key]
    elif kind == "repeat" and isinstance(parent, list):
        parent.append(copy.deepcopy(parent[key]))
    elif kind == "replace" and same:
        parent[key] = copy.deepcopy(choose.choice(same))
    elif kind == "add" and isinstance(parent, dict):
        name, value = choose.choice(others)
        parent[name] = copy.deepcopy(value)
    else:
        parent[key] = copy.deepcopy(choose.choice(VALUES))


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Yields (container, key) for every key of every mapping and every index of every list, from the top down."""
    if isinstance(node, dict | list):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            yield node, key
            yield from _places(node[key])


def _fields(sources: list[Document]) -> list[tuple[Any, Any]]:
    return [
        (key, parent[key])
        for source in sources
        for parent, key in _places(source.get("spec"))
        if isinstance(parent, dict)
    ]
