"""Invalid pipelines are refused with a message that names the field and the remedy. Valid ones are accepted.

tests/controlplane/crd/test_crd_verdicts.py tests a real API server with the same tables.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_proto.errors import OmniProtoError
from omni_proto.pipeline import OmniPipeline, PipelineError, load_pipeline, parse_pipeline
from omni_proto.pipeline.read.load import StrictLoader, parse_document
from omni_proto.pipeline.read.offline import OBJECT_META_SCHEMA, load_checked, parse_checked
from omni_proto.pipeline.schema import object_schema
from omni_proto.pipeline.types.forms import FORMS
from support.specs.spec_edits import BASE, YAML_WORDS, Edit, edit, first, second, stages, third
from support.specs.spec_table import BAD, BAD_FIELDS, GOOD, make
from support.tables import each_row

SAMPLES = sorted((Path(__file__).parents[4] / "manifests" / "samples").glob("*.yaml"))


def dump(*edits: Edit) -> str:
    return json.dumps(make(*edits))


def problems(text: str, parse: Callable[[str], OmniPipeline] = parse_checked) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        parse(text)
    assert isinstance(caught.value, OmniProtoError)
    return [str(problem) for problem in caught.value.problems]


@each_row("case", BAD, ids=lambda name: name.replace(" ", "-"))
def test_bad_field_is_named_with_the_remedy(case: str) -> None:
    bad = BAD[case]
    found = problems(dump(*bad.edits))
    words = bad.offline or bad.message
    assert any(problem.startswith(f"{bad.field}: ") and words in problem for problem in found), found


@each_row("case", GOOD, ids=lambda name: name.replace(" ", "-"))
def test_good_pipeline_is_accepted(case: str) -> None:
    assert parse_checked(dump(*GOOD[case])).spec.stages


IDENTITY = {
    "api version": (edit("apiVersion", "v1"), 'apiVersion: must be omnipipeline.io/v1alpha1, found "v1"'),
    "no api version": (edit("apiVersion", None), "apiVersion: is missing"),
    "kind": (edit("kind", "Pipeline"), 'kind: must be OmniPipeline, found "Pipeline"'),
    "no kind": (edit("kind", None), "kind: is missing"),
    "no metadata": (edit("metadata", None), "metadata: is missing"),
    "no name": (edit("metadata/name", None), "metadata.name: is missing"),
    "namespace": (edit("metadata/namespace", "A b"), "metadata.namespace: must be the name of a namespace: lower-case"),
    "annotation is a number": (
        edit("metadata/annotations", {"a": 1}),
        "metadata.annotations.a: must be text; put quotes around 1",
    ),
}


@pytest.mark.parametrize("case", IDENTITY, ids=lambda name: name.replace(" ", "-"))
def test_wrong_kind_and_metadata_are_refused(case: str) -> None:
    change, expected = IDENTITY[case]
    (found,) = problems(dump(change))
    assert found.startswith(expected)


@each_row(
    "case",
    # Left out: cases that the CRD's schema refuses but the types do not, such as duplicate items of a list.
    sorted(
        BAD_FIELDS.keys()
        - {"pull secret twice", "topology twice", "output twice", "label", "model alias twice"}
        - {"a variable twice", "unknown field of metadata"}
        - {"unknown field of a status"}
    ),
    ids=lambda name: name.replace(" ", "-"),
)
def test_types_alone_refuse_wrong_fields_too(case: str) -> None:
    """A stage server has no CEL library, so OmniLLM checks its pipeline file with the types alone."""
    bad = BAD_FIELDS[case]
    found = problems(dump(*bad.edits), parse_pipeline)
    assert any(problem.startswith((bad.field, "spec: ")) for problem in found), found


NEAR_QUANTITIES = {
    "1e3": "1000",
    "1.5e9": "1500000000",
    "+2": "2",
    ".5": "0.5",
    "1,5": "1.5",
    "500 m": "500m",
    "16 Gi": "16Gi",
    "16gi": "16Gi",
    "16GiB": "16Gi",
    "16GB": "16G",
    "16 gb": "16G",
    "512mb": "512M",
    "4K": "4k",
    **dict.fromkeys(["1Ei", "100u", "much", "", "Gi", "1e-3", "0x10", "-1", "٣Gi"], ""),
}


@each_row("text", NEAR_QUANTITIES)
def test_a_quantity_in_another_notation_is_named_in_ours(text: str) -> None:
    near = NEAR_QUANTITIES[text]
    (found,) = problems(dump(first(resources={"limits": {"cpu": text}})))
    assert found.partition("; did you mean ")[2] == (near and f"{near}?"), found
    if near:
        parse_checked(dump(first(resources={"limits": {"cpu": near}})))


NO_TREE = {
    "no entry": first(inputs=[{"from": "talker"}]),
    "two entries": second(inputs=[]),
    "input that does not exist": second(inputs=[{"from": "tinker"}]),
    "a stage reads itself": second(inputs=[{"from": "talker"}]),
    "circle": second(inputs=[{"from": "token2wav"}]),
    "circle beside a chain": stages("a b c", "x y x"),
    "same name twice": third(name="talker"),
    "entry's name twice": third(name="thinker"),
}


@pytest.mark.parametrize("case", NO_TREE, ids=lambda name: name.replace(" ", "-"))
def test_types_alone_refuse_what_is_no_tree(case: str) -> None:
    """Stages that do not form a tree are refused by the types too."""
    (found,) = problems(dump(NO_TREE[case]), parse_pipeline)
    assert found.startswith("spec: ")
    assert "one stage without inputs, all others below it; `omnipipe validate` names the wrong stage" in found


@pytest.mark.parametrize(
    ("section", "key"), [("resources", "limits"), ("podLabels", ""), ("nodeSelector", "")], ids=lambda name: name or "-"
)
def test_keys_that_hold_their_values_are_refused(section: str, key: str) -> None:
    """`{nvidia.com/gpu:1}` is a key without a value, which the API server drops: the stage would have no GPU."""
    entry = {"nvidia.com/gpu:1": None}
    (found,) = problems(dump(first(**{section: {key: entry} if key else entry})))
    path = f"spec.stages[0].{section}{f'.{key}' if key else ''}[nvidia.com/gpu:1]"
    assert found == f"{path}: has no value; YAML needs a space after the colon: KEY: VALUE"


def test_a_wrong_type_is_no_choice_either() -> None:
    (found,) = problems(dump(edit("spec/entry/tls", {"secretName": "a", "clientCertificates": True})))
    assert found.endswith('must be one of "Ignored", "Required"; found true')


def test_every_pattern_has_words() -> None:
    """No message shows a regular expression."""

    def patterns(node: object) -> set[str]:
        children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        own = {node["pattern"]} if isinstance(node, dict) and isinstance(node.get("pattern"), str) else set()
        return own.union(*map(patterns, children))

    shown = patterns(object_schema()["properties"]["spec"]) | patterns(OBJECT_META_SCHEMA)
    assert {item.removeprefix("(?i)").replace("\\Z", "$") for item in shown} <= FORMS.keys()


NOT_A_PIPELINE = {
    "empty": ("", "file: holds 0 YAML documents; give one OmniPipeline"),
    "two documents": ("a: 1\n---\nb: 2\n", "file: holds 2 YAML documents"),
    "two items": ("{apiVersion: v1, kind: List, items: [{a: 1}, {b: 2}]}", "file: holds 2 YAML documents"),
    "list": ("[1]", "file: must hold one OmniPipeline, found a list"),
    "not YAML": ("a: [", "line 1, column 5: is not YAML"),
    "key twice": ("kind: A\nkind: B\n", "is not YAML: key 'kind' is given twice"),
    "digits that are none": ("a: 0x_\n", "line 1, column 4: is not YAML: '0x_' is not a whole number"),
    "digits without end": ("a: " + "9" * 5000, "is not a whole number of at most 64 digits"),
    "tag that does not fit": ("a: !!float ''\n", "line 1, column 4: is not YAML: '' is not a valid float"),
    "a date that is none": ("a: !!timestamp x\n", "line 1, column 4: is not YAML: 'x' is not a valid timestamp"),
    "half a character": ('a: "\\ud83d"\n', r"line 1, column 4: is not YAML: '\ud83d' is not a valid str"),
    "alias": ("a: &x [1]\nb: *x\n", "is not YAML: aliases are not supported"),
    "Python tag": ("a: !!python/object/apply:os.system ['true']\n", "is not YAML: could not determine a constructor"),
    "not a number": (
        "spec: {stages: [{limits: {x: .NaN}}]}\n",
        "spec.stages[0].limits.x: must be a number, found .nan; leave the field out for its default",
    ),
    "infinity": ("spec: {timeouts: {request: -.inf}}\n", "spec.timeouts.request: must be a number, found -.inf"),
    "bytes": ("spec: {a.b/c: !!binary aGk=}\n", "spec[a.b/c]: JSON has no bytes; write it as text, in quotes"),
    "a date by its tag": ("a: !!timestamp 2026-01-01\n", "a: JSON has no date; write it as text, in quotes"),
    "deep nesting": ("[" * 5000, "is nested too deeply"),
}


def test_characters_that_json_writes_as_two_escapes_are_read() -> None:
    assert parse_document('{"a": "\\ud83d\\ude00"}', "test") == {"a": "\N{GRINNING FACE}"}


def test_keys_are_compared_once_each() -> None:
    """Comparing every pair of keys took 10 s for a file of 220 KB; for 40,000 keys it would take minutes."""
    nodes = [
        (yaml.ScalarNode("tag:yaml.org,2002:str", f"k{number}"), yaml.ScalarNode("tag:yaml.org,2002:null", ""))
        for number in range(40_000)
    ]
    loader = StrictLoader("")
    found = loader.construct_mapping(yaml.MappingNode("tag:yaml.org,2002:map", nodes))
    assert len(found) == 40_000
    with pytest.raises(yaml.constructor.ConstructorError, match="given twice"):
        loader.construct_mapping(yaml.MappingNode("tag:yaml.org,2002:map", [*nodes, nodes[7]]))


@each_row("case", NOT_A_PIPELINE, ids=lambda name: name.replace(" ", "-"))
@each_row("parse", [parse_checked, parse_pipeline])
def test_text_that_is_no_pipeline(case: str, parse: Callable[[str], OmniPipeline]) -> None:
    text, expected = NOT_A_PIPELINE[case]
    found = problems(text, parse)
    assert len(found) == 1
    assert expected in found[0]


def test_every_wrong_field_is_listed_at_once() -> None:
    text = dump(edit("kind", "X"), edit("spec/model/uri", 1), first(replicas=-1), third(foo=1))
    for parse in (parse_checked, parse_pipeline):
        assert {problem.split(":")[0] for problem in problems(text, parse)} == {
            "kind",
            "spec.model.uri",
            "spec.stages[0].replicas",
            "spec.stages[2].foo",
        }


def test_every_broken_rule_is_listed_at_once() -> None:
    text = dump(second(inputs=[{"from": "tinker"}]), third(outputs=[]), first(name="a-b"))
    assert [problem.split(" ")[0:3] for problem in problems(text)] == [
        ["spec.stages:", "inputs", "of"],
        ["spec.stages:", "stages", "that"],
        ["spec.stages[0].name:", "must", "be"],
    ]


def test_message_has_one_line_a_problem_with_the_source(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(dump(edit("kind", "X"), edit("spec/suspend", "x\ny")))
    for load in (load_checked, load_pipeline):
        with pytest.raises(PipelineError) as caught:
            load(file)
        assert [line.startswith(f"{file}: ") for line in str(caught.value).splitlines()] == [True, True]


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("# " + "x" * (300 << 10))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, expected in (
        ("absent.yaml", "cannot be read: No such file"),
        ("big.yaml", "is larger than 262144 bytes"),
        ("binary.yaml", "is not UTF-8 text"),
    ):
        for load in (load_checked, load_pipeline):
            with pytest.raises(PipelineError, match=expected):
                load(tmp_path / name)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid_and_survive_a_round_trip(path: Path) -> None:
    pipeline = load_checked(path)
    assert load_pipeline(path) == pipeline, "filling in defaults changes nothing that is typed"
    dumped = yaml.safe_dump(pipeline.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    assert parse_checked(dumped) == parse_pipeline(dumped) == pipeline
    assert pipeline.metadata.name == path.stem


def test_dates_stay_text() -> None:
    text = yaml.safe_dump(BASE).replace("name: omni\n", "name: omni\n  annotations: {day: 2026-01-01}\n")
    assert parse_checked(text).metadata.annotations == {"day": "2026-01-01"}


# tests/controlplane/crd/test_crd_api.py compares the same words with kubectl.
@each_row("word, value", YAML_WORDS.items())
def test_plain_words_of_yaml_are_what_they_are_to_kubectl(word: str, value: Any) -> None:
    """A YAML word without quotes gets the same value and type as in kubectl."""
    found = parse_document(f"key: {word}\n", "test")["key"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("parse", [parse_checked, parse_pipeline])
def test_whole_numbers_with_a_point(parse: Callable[[str], OmniPipeline]) -> None:
    """A whole number may be written with a decimal point, such as 2.0."""
    assert parse(dump(first(replicas=2.0))).spec.stages[0].replicas == 2
