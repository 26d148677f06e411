"""Live objects are read leniently: fields that a newer CRD adds anywhere are ignored and named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from omni_proto.pipeline import PipelineError, type_document, type_live_document
from omni_proto.pipeline.problems import format_path
from omni_proto.pipeline.schema import object_schema

DOCUMENT: dict[str, Any] = {
    "apiVersion": "omnipipeline.io/v1alpha1",
    "kind": "OmniPipeline",
    "metadata": {"name": "demo", "namespace": "models", "generation": 3},
    "spec": {
        "model": {"uri": "hf://org/name", "cache": {"persistentVolumeClaim": "models"}},
        "defaults": {
            "image": "stage:1",
            "tolerations": [{"key": "gpu"}],
            "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
            "podLabels": {"int": "1", "str": "2"},
        },
        "stages": [
            {"name": "a", "component": "ours/a", "engineArgs": {"dtype": "bfloat16"}, "limits": {}, "timeouts": {}},
            {"name": "b", "component": "ours/b", "inputs": [{"from": "a"}], "defaultSampling": {}, "resources": {}},
        ],
        "entry": {"tls": {"secretName": "tls"}},
        "aliases": {"voices": {"alloy": "Chelsie"}},
        "rollout": {"maxSurge": "25%"},
    },
}


def objects(schema: dict[str, Any], value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yields the path of each object of the document whose fields the schema names."""
    if isinstance(value, dict):
        known = schema.get("properties")
        if known and path[:1] == ("spec",):
            yield path
        for name, item in value.items():
            yield from objects((known or {}).get(name, {}), item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from objects(schema.get("items", {}), item, (*path, index))


PLACES = list(objects(object_schema(), DOCUMENT))
VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.just({"a": [1]}), st.just([{"b": 2}])
)


def test_every_kind_of_place_is_tried() -> None:
    assert len(PLACES) >= 18
    assert {("spec",), ("spec", "stages", 1, "inputs", 0), ("spec", "entry", "tls")} <= set(PLACES)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.tuples(st.sampled_from(PLACES), st.sampled_from(["speculation", "int", "str", "[key]", "x-y.z"])),
        VALUES,
        min_size=1,
        max_size=6,
    )
)
def test_unknown_fields_anywhere_change_nothing_and_are_named(extra: dict[Any, Any]) -> None:
    document = copy.deepcopy(DOCUMENT)
    for (place, name), value in extra.items():
        parent: Any = document
        for part in place:
            parent = parent[part]
        parent[name] = value
    before = copy.deepcopy(document)
    pipeline, ignored = type_live_document(document)
    assert pipeline == type_document(DOCUMENT)
    assert sorted(ignored) == sorted(format_path((*place, name)) for place, name in extra)
    assert document == before
    with pytest.raises(PipelineError, match="unknown field"):
        type_document(document)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"rollout": {"strategy": "Canary"}}, "spec.rollout.strategy"),
        ({"suspend": "OnFriday"}, "spec.suspend"),
        ({"stages": [{"name": "a", "component": "ours/a", "replicas": 5000}]}, "spec.stages[0].replicas"),
        ({"stages": [{"name": "a"}]}, "spec.stages[0].component: is missing"),
    ],
)
def test_what_is_not_understood_is_refused_and_only_that_is_named(change: dict[str, Any], problem: str) -> None:
    document = {**DOCUMENT, "spec": {**DOCUMENT["spec"], **change, "scaling": {}}}
    with pytest.raises(PipelineError) as raised:
        type_live_document(document)
    assert problem in str(raised.value)
    assert "unknown field" not in str(raised.value)


def test_a_known_document_has_nothing_to_ignore() -> None:
    assert type_live_document(DOCUMENT) == (type_document(DOCUMENT), ())
