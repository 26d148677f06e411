"""Each field of the CRD has the description, bounds and default that its type gives, and each list says how it merges.

All its rules can be evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from tools.export_schemas import build_crd, render_reference

from omni_proto.pipeline import OmniPipeline
from omni_proto.pipeline.read.offline import RuleError, check_document, evaluate, fill_in
from omni_proto.pipeline.rules.all_rules import RULES, TEXT_RULES
from omni_proto.pipeline.rules.graph import MAX_JOINED_NAME, OBJECT_RULES
from omni_proto.pipeline.schema import object_schema, structural_schema
from omni_proto.pipeline.types.kubernetes import GPU_RESOURCES
from omni_proto.pipeline.types.status import PipelineStatus
from support.specs.spec_table import BAD, make

LIST_KEYS = {
    "spec.stages": ["name"],
    "spec.stages[].inputs": ["from"],
    "spec.stages[].resources.claims": ["name"],
    **{
        f"{place}.{field}": [key]
        for place in ("spec.stages[]", "spec.defaults")
        for field, key in (
            *((name, "name") for name in ("imagePullSecrets", "env", "volumes", "resourceClaims")),
            ("volumeMounts", "mountPath"),
            ("topology", "topologyKey"),
        )
    },
    "status.conditions": ["type"],
    "status.names": ["name"],
    "status.stages": ["name"],
}


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from nodes(child, f"{path}.{name}".lstrip("."))
    if "items" in schema:
        yield from nodes(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from nodes(schema["additionalProperties"], f"{path}{{}}")


NODES = dict(nodes(object_schema()))
FIELDS = {path: node for path, node in NODES.items() if path.startswith(("spec", "status"))}


def test_every_field_is_described() -> None:
    named = {path: node for path, node in FIELDS.items() if not path.endswith(("[]", "{}"))}
    assert len(named) > 150
    assert [path for path, node in named.items() if not node.get("description")] == []
    assert [path for path, node in named.items() if "\n" in node["description"]] == []


def test_the_plan_for_v1beta1_names_every_field_without_a_unit_or_quantity(request: pytest.FixtureRequest) -> None:
    page = (request.config.rootpath / "docs" / "adr" / "kubernetes.md").read_text()
    plan = page.partition("## 0043")[2].partition("\n## ")[0]
    for path, node in FIELDS.items():
        name, said = path.rpartition(".")[2], node.get("description", "")
        is_time = node.get("type") in ("integer", "number") and re.search(
            r"\b[Ss]econds\b(?! between)|in seconds", said
        )
        if path.startswith("spec.") and ((is_time and not name.endswith("Seconds")) or name.endswith(("Bytes", "Mib"))):
            assert f"`{name}`" in plan or f".{name}`" in plan, path


def test_every_field_is_bounded() -> None:
    bounds = {
        "string": {"maxLength", "enum"},
        "integer": {"maximum"},
        "number": {"maximum"},
        "array": {"maxItems"},
        "boolean": {"type"},
    }
    for path, node in FIELDS.items():
        if node.get("x-kubernetes-int-or-string"):
            assert {"maximum", "maxLength"} <= set(node), path
        elif node["type"] == "object":
            assert "properties" in node or "maxProperties" in node, path
        else:
            assert bounds[node["type"]] & set(node), path


def test_every_list_says_how_it_merges() -> None:
    lists = {path: node for path, node in FIELDS.items() if node.get("type") == "array"}
    keys = {path: node.get("x-kubernetes-list-map-keys") for path, node in lists.items()}
    assert {path: found for path, found in keys.items() if found} == LIST_KEYS
    assert {node["x-kubernetes-list-type"] for node in lists.values()} == {"atomic", "set", "map"}
    assert lists["spec.stages[].outputs"]["x-kubernetes-list-type"] == "set"


def test_defaults_are_those_of_the_types_and_of_a_status_that_nobody_wrote() -> None:
    defaults = {path: node["default"] for path, node in FIELDS.items() if "default" in node}
    # GitOps tools take a resource without observedGeneration for one that is ready.
    assert {path: defaults.pop(path) for path in list(defaults) if path.startswith("status")} == {
        "status": {"observedGeneration": 0}
    }
    assert defaults["spec.rollout"] == {"strategy": "BlueGreen", "maxSurge": 1, "maxUnavailable": 0}
    assert defaults["spec.timeouts"] == {"request": 300}
    assert [path for path, value in defaults.items() if isinstance(value, dict)] == ["spec.timeouts", "spec.rollout"]
    typed = OmniPipeline.model_validate(
        {
            "apiVersion": "omnipipeline.io/v1alpha1",
            "kind": "OmniPipeline",
            "metadata": {"name": "a"},
            "spec": {"model": {"uri": "hf://a/b"}, "stages": [{"name": "a", "component": "a/b"}]},
        }
    ).model_dump(by_alias=True, mode="json")
    assert typed["spec"]["rollout"] == defaults["spec.rollout"]
    assert typed["spec"]["stages"][0]["limits"] == {
        **dict.fromkeys(("maxInflightBytes", "refusalsPerSecond", "maxRefusalWait")),
        **{
            path.rsplit(".", 1)[1]: value
            for path, value in defaults.items()
            if path.startswith("spec.stages[].limits.")
        },
    }


def test_nothing_lets_a_pod_out_of_its_box() -> None:
    """No field of the CRD weakens the isolation of pods."""
    text = str(build_crd())
    for word in (
        "hostPath",
        "securityContext",
        "automountServiceAccountToken",
        "capabilities",
        "privileged",
        "trustRemoteCode",
        "workerCls",
        "x-rules",
    ):
        assert f"'{word}'" not in text
    assert not any(node.get("x-kubernetes-preserve-unknown-fields") for node in NODES.values())


def all_rules() -> list[Any]:
    return [rule for rules in (*RULES.values(), *TEXT_RULES.values(), OBJECT_RULES) for rule in rules]


def test_every_rule_is_in_the_crd_and_on_the_page() -> None:
    placed = {entry["rule"] for node in NODES.values() for entry in node.get("x-kubernetes-validations", ())}
    page = render_reference()
    forms = [rule for rules in TEXT_RULES.values() for rule in rules]
    for rule in all_rules():
        assert rule.rule in placed, rule.summary
        assert rule.summary in page or rule in forms, rule.summary


def test_every_rule_refuses_a_pipeline_of_the_table() -> None:
    said = {problem.message for bad in BAD.values() for problem in check_document(fill_in(make(*bad.edits)))}
    for rule in all_rules():
        words = re.escape(rule.words).replace("%s", ".*").replace("%d", "[0-9]+")
        assert any(re.fullmatch(words, message) for message in said), rule.summary


def test_names_leave_room_for_the_revision() -> None:
    assert MAX_JOINED_NAME + len("-abcdef0") <= 63
    assert MAX_JOINED_NAME + 1 - 2 + len("-headless") <= 63, "the stable headless Service, with the shortest stage name"


def test_every_gpu_resource_is_in_the_rules() -> None:
    """The rules on resources name every GPU resource."""
    rules = str(FIELDS["spec.stages[].resources"]["x-kubernetes-validations"])
    assert all(f"'{name}'" in rules for name in GPU_RESOURCES)


def test_bounds_that_float64_cannot_hold_are_rounded_towards_0() -> None:
    maximum = FIELDS["spec.stages[].defaultSampling.seed"]["maximum"]
    assert maximum < 2**63 - 1
    assert int(float(maximum)) == maximum
    assert structural_schema(PipelineStatus)["properties"]["observedGeneration"]["maximum"] == maximum


class Base(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Union(Base):
    value: Annotated[int, Field(le=1)] | Annotated[bool, Field()] = 1


class Untranslatable(Base):
    value: Annotated[set[int], Field(max_length=3)] = Field(default_factory=set)


class Constant(Base):
    inner: Annotated[list[Annotated[str, StringConstraints(max_length=3)]], Field(max_length=2)] = Field(
        default_factory=list
    )
    """Words, that
    are short."""
    share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """A share."""


def test_toy_type() -> None:
    assert structural_schema(Constant) == {
        "type": "object",
        "properties": {
            "inner": {
                "description": "Words, that are short.",
                "type": "array",
                "maxItems": 2,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "string", "maxLength": 3},
            },
            "share": {
                "description": "A share. Default: 0.5.",
                "type": "number",
                "default": 0.5,
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 1,
                "exclusiveMaximum": True,
            },
        },
    }


@pytest.mark.parametrize("model", [Union, Untranslatable])
def test_what_a_structural_schema_cannot_say_is_an_error(model: type[BaseModel]) -> None:
    with pytest.raises(ValueError, match="a structural schema has no"):
        structural_schema(model)


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
        ("self.indexOf('b')", ["a", "b"], 1),
        ("self.indexOf('c')", ["a", "b"], -1),
        ("'%s %d %s'.format([self, 2, 'x'])", ["a", 'q"'], '["a", "q\\""] 2 x'),
        ("quantity(self).compareTo(quantity('1Gi'))", "1024Mi", 0),
        ("quantity(self).compareTo(quantity('1'))", "1001m", 1),
        ("quantity(self).compareTo(quantity('1.5k'))", "1499", -1),
        ("quantity('2P').compareTo(quantity(self))", "2Pi", -1),
    ],
)
def test_functions_that_kubernetes_adds(expression: str, value: Any, expected: Any) -> None:
    assert evaluate(expression, value) == expected


@pytest.mark.parametrize("expression", ["self.", "nothing", "self.a.b", "self + 1"])
def test_expressions_that_cannot_be_evaluated(expression: str) -> None:
    with pytest.raises(RuleError, match=r"self|nothing"):
        evaluate(expression, {"c": 1})
