"""Wrong pipelines are refused with the offender and the remedy named; right ones are accepted."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from omni_proto.errors import OmniProtoError
from omni_proto.pipeline import PipelineError, load_pipeline, parse_pipeline
from omni_proto.pipeline.checks import find_cycles

SAMPLES = sorted((Path(__file__).parents[3] / "manifests" / "samples").glob("*.yaml"))

BASE: dict[str, Any] = {
    "apiVersion": "omnipipeline.io/v1alpha1",
    "kind": "OmniPipeline",
    "metadata": {"name": "omni"},
    "spec": {
        "model": {"uri": "hf://Qwen/Qwen2.5-Omni-7B"},
        "stages": [
            {"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]},
            {"name": "talker", "component": "qwen2_5_omni/talker", "inputs": [{"from": "thinker", "mode": "Stream"}]},
            {
                "name": "token2wav",
                "component": "qwen2_5_omni/token2wav",
                "inputs": [{"from": "talker"}],
                "outputs": ["Audio"],
            },
        ],
    },
}


def edit(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set the value at a path such as spec.stages.0.name; None removes it."""

    def apply(document: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        node: Any = document
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is None:
            del node[last]
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value

    return apply


def make(*edits: Callable[[dict[str, Any]], None]) -> str:
    document = copy.deepcopy(BASE)
    for change in edits:
        change(document)
    return json.dumps(document)


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        parse_pipeline(text)
    assert isinstance(caught.value, OmniProtoError)
    return [str(problem) for problem in caught.value.problems]


S0, S1, S2 = (f"spec/stages/{index}" for index in range(3))
LONG = "x" * 40

BAD: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "api version": (edit("apiVersion", "v1"), "apiVersion: must be omnipipeline.io/v1alpha1"),
    "kind": (edit("kind", "Pipeline"), "kind: must be OmniPipeline"),
    "no kind": (edit("kind", None), "kind: is missing"),
    "no name": (edit("metadata/name", None), "metadata.name: is missing"),
    "name with capitals": (edit("metadata/name", "Omni"), "metadata.name: must be lower-case letters and digits"),
    "name with a dot": (edit("metadata/name", "a.b"), "metadata.name: must be lower-case"),
    "name begins with a digit": (edit("metadata/name", "1a"), "metadata.name: must be lower-case"),
    "no spec": (edit("spec", None), "spec: is missing"),
    "no model": (edit("spec/model", None), "spec.model: is missing"),
    "uri without scheme": (edit("spec/model/uri", "Qwen/X"), "spec.model.uri: must be hf://ORG/NAME, pvc://"),
    "uri with http": (edit("spec/model/uri", "http://x/y"), "spec.model.uri: must be hf://ORG/NAME"),
    "uri leaves its root": (edit("spec/model/uri", "pvc://c/../d"), "spec.model.uri: pvc://c/../d leaves its root"),
    "revision is a number": (
        edit("spec/model/revision", 12),
        "spec.model.revision: must be text; put quotes around 12",
    ),
    "secret without name": (edit("spec/model/tokenSecretRef", {}), "spec.model.tokenSecretRef.name: is missing"),
    "no stages": (edit("spec/stages", []), "spec.stages: list should have at least 1 item"),
    "unknown field": (edit("spec/stags", []), "spec.stags: unknown field; did you mean stages?"),
    "snake case": (
        edit(f"{S0}/engineArgs", {"max_model_len": 1}),
        "spec.stages[0].engineArgs.max_model_len: unknown field; did you mean maxModelLen?",
    ),
    "an escape hatch": (
        edit(f"{S0}/engineArgs", {"trustRemoteCode": True}),
        "spec.stages[0].engineArgs.trustRemoteCode: unknown field; known here: maxModelLen",
    ),
    "host path": (edit(f"{S0}/hostPath", "/"), "spec.stages[0].hostPath: unknown field"),
    "security context": (edit("spec/defaults/securityContext", {}), "spec.defaults.securityContext: unknown field"),
    "stage name with a dash": (edit(f"{S0}/name", "the-thinker"), "spec.stages[0].name: must be lower-case"),
    "stage name too long": (edit(f"{S0}/name", "x" * 21), "spec.stages[0].name: string should have at most 20"),
    "component as Python path": (
        edit(f"{S0}/component", "my.module:Class"),
        "spec.stages[0].component: must be an id of the stage server's registry",
    ),
    "replicas as text": (edit(f"{S0}/replicas", "2"), "spec.stages[0].replicas: input should be a valid integer"),
    "replicas below zero": (edit(f"{S0}/replicas", -1), "spec.stages[0].replicas: input should be greater than or"),
    "output that does not exist": (
        edit(f"{S0}/outputs", ["Video"]),
        "spec.stages[0].outputs[0]: input should be 'Text'",
    ),
    "mode that does not exist": (
        edit(f"{S1}/inputs/0/mode", "stream"),
        "spec.stages[1].inputs[0].mode: input should be 'Full' or 'Stream'",
    ),
    "two inputs": (
        edit(f"{S2}/inputs", [{"from": "talker"}, {"from": "thinker"}]),
        "spec.stages[2].inputs: list should have at most 1 item",
    ),
    "dtype that does not exist": (
        edit(f"{S0}/engineArgs", {"dtype": "int4"}),
        "spec.stages[0].engineArgs.dtype: input should be 'auto'",
    ),
    "gpu share above 1": (
        edit(f"{S0}/engineArgs", {"gpuMemoryUtilization": 1.5}),
        "spec.stages[0].engineArgs.gpuMemoryUtilization: input should be less than or equal to 1",
    ),
    "top_p 0": (
        edit(f"{S0}/defaultSampling", {"topP": 0}),
        "spec.stages[0].defaultSampling.topP: input should be greater than 0",
    ),
    "quantity": (
        edit(f"{S0}/resources", {"limits": {"memory": "16 GB"}}),
        "spec.stages[0].resources.limits.memory: must be a quantity such as 2, 500m or 16Gi",
    ),
    "half a gpu": (
        edit(f"{S0}/resources", {"limits": {"nvidia.com/gpu": "500m"}}),
        "spec.stages[0].resources.limits[nvidia.com/gpu]: stage 'thinker' asks for 500m GPUs; give a whole number",
    ),
    "no gpu": (
        edit(f"{S0}/resources", {"limits": {"nvidia.com/gpu": 0}}),
        "stage 'thinker' asks for 0 GPUs; give a whole number from 1 to 64, or leave it out",
    ),
    "gpu request differs": (
        edit(f"{S0}/resources", {"limits": {"nvidia.com/gpu": 1}, "requests": {"nvidia.com/gpu": 2}}),
        "spec.stages[0].resources.requests[nvidia.com/gpu]: stage 'thinker' requests another number of GPUs",
    ),
    "image with a space": (edit(f"{S0}/image", "my image"), "spec.stages[0].image: must be an image name"),
    "reserved label": (
        edit(f"{S0}/podLabels", {"omnipipeline.io/stage": "x"}),
        "spec.stages[0].podLabels[omnipipeline.io/stage]: domain omnipipeline.io is reserved",
    ),
    "reserved annotation": (
        edit("spec/defaults/podAnnotations", {"a.kubernetes.io/x": "y"}),
        "spec.defaults.podAnnotations[a.kubernetes.io/x]: domain a.kubernetes.io is reserved",
    ),
    "label key": (edit(f"{S0}/podLabels", {"a b": "c"}), "spec.stages[0].podLabels.a b: must be a label key"),
    "toleration of nothing": (
        edit(f"{S0}/tolerations", [{"value": "x"}]),
        "spec.stages[0].tolerations[0].key: is missing; name the taint's key, or use operator: Exists",
    ),
    "toleration with a value too many": (
        edit(f"{S0}/tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]),
        "spec.stages[0].tolerations[0].value: has no meaning with operator Exists; remove it",
    ),
    "timeout 0": (edit("spec/timeouts", {"request": 0}), "spec.timeouts.request: input should be greater than 0"),
    "rollout stuck": (
        edit("spec/rollout", {"maxSurge": "0%", "maxUnavailable": 0}),
        "spec.rollout: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; raise one",
    ),
    "rollout share": (
        edit("spec/rollout", {"maxSurge": "110%"}),
        "spec.rollout.maxSurge: must be a number up to 64 or",
    ),
    "suspend as text": (edit("spec/suspend", "yes"), "spec.suspend: input should be a valid boolean"),
    "no entry": (edit(f"{S0}/inputs", [{"from": "talker"}]), "spec.stages: found 0 entry stages; remove the inputs of"),
    "two entries": (
        edit(f"{S1}/inputs", []),
        "spec.stages: found 2 entry stages: thinker, talker; exactly one may have no inputs",
    ),
    "input that does not exist": (
        edit(f"{S1}/inputs/0/from", "tinker"),
        "spec.stages[1].inputs[0].from: stage 'talker' reads 'tinker', which is not a stage of this pipeline "
        "(there are: thinker, talker, token2wav)",
    ),
    "cycle": (
        edit(f"{S1}/inputs/0/from", "token2wav"),
        "spec.stages: stages read one another in a circle: token2wav -> talker -> token2wav",
    ),
    "a stage reads itself": (
        edit(f"{S1}/inputs/0/from", "talker"),
        "spec.stages: stages read one another in a circle: talker -> talker",
    ),
    "same name twice": (
        edit(f"{S2}/name", "thinker"),
        "spec.stages[2].name: 'thinker' is used 2 times; give each stage a name of its own",
    ),
    "names too long together": (
        edit("metadata/name", "x" * 45),
        "spec.stages[2].name: pipeline '"
        + "x" * 45
        + "' and stage 'token2wav' make a name of 55 characters, at most 54",
    ),
    "output twice": (
        edit(f"{S0}/outputs", ["Text", "Text"]),
        "spec.stages[0].outputs: stage 'thinker' names an output twice",
    ),
    "a leaf returns nothing": (
        edit(f"{S2}/outputs", []),
        "spec.stages[2].outputs: stage 'token2wav' returns nothing and no stage reads it; declare outputs: [Text]",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=lambda name: name.replace(" ", "-"))
def test_bad_field_is_named_with_the_remedy(case: str) -> None:
    change, expected = BAD[case]
    found = problems(make(change))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize("field", ["revision", "tokenSecretRef", "cache"])
@pytest.mark.parametrize("uri", ["file:///models/x", "pvc://models/x"])
def test_settings_of_downloads_need_an_hf_uri(field: str, uri: str) -> None:
    values = {"revision": "main", "tokenSecretRef": {"name": "x"}, "cache": {"persistentVolumeClaim": "x"}}
    text = make(edit("spec/model", {"uri": uri, field: values[field]}))
    scheme = uri.split(":")[0]
    assert problems(text) == [
        f"spec.model.{field}: has no meaning with {scheme}://; remove it, or use an hf:// uri",
    ]


NOT_A_PIPELINE = {
    "empty": ("", "file: holds 0 YAML documents; give one OmniPipeline"),
    "two documents": ("a: 1\n---\nb: 2\n", "file: holds 2 YAML documents"),
    "list": ("[1]", "file: must hold one OmniPipeline, found a list"),
    "not YAML": ("a: [", "line 1, column 5: is not YAML"),
    "key twice": ("kind: A\nkind: B\n", "is not YAML: key 'kind' is given twice"),
    "alias": ("a: &x [1]\nb: *x\n", "is not YAML: aliases are not supported"),
    "Python tag": ("a: !!python/object/apply:os.system ['true']\n", "is not YAML: could not determine a constructor"),
    "not a number": ("a: .nan\n", "file: holds a value that JSON cannot"),
    "deep nesting": ("[" * 5000, "is not YAML"),
}


@pytest.mark.parametrize("case", NOT_A_PIPELINE, ids=lambda name: name.replace(" ", "-"))
def test_text_that_is_no_pipeline(case: str) -> None:
    text, expected = NOT_A_PIPELINE[case]
    found = problems(text)
    assert len(found) == 1
    assert expected in found[0]


def test_every_wrong_field_is_listed_at_once() -> None:
    text = make(edit("kind", "X"), edit("spec/model/uri", "x"), edit(f"{S0}/replicas", -1), edit(f"{S2}/foo", 1))
    assert [problem.split(":")[0] for problem in problems(text)] == [
        "kind",
        "spec.model.uri",
        "spec.stages[0].replicas",
        "spec.stages[2].foo",
    ]


def test_every_broken_rule_is_listed_at_once() -> None:
    text = make(edit(f"{S1}/inputs/0/from", "tinker"), edit(f"{S2}/outputs", []), edit(f"{S0}/outputs", []))
    assert [problem.split(": ")[0] for problem in problems(text)] == [
        "spec.stages[1].inputs[0].from",
        "spec.stages[0].outputs",
        "spec.stages[2].outputs",
    ]


def test_message_has_one_line_a_problem_with_the_source(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(make(edit("kind", "X"), edit("spec/model/uri", "x")))
    with pytest.raises(PipelineError) as caught:
        load_pipeline(file)
    assert [line.startswith(f"{file}: ") for line in str(caught.value).splitlines()] == [True, True]


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_text("# " + "x" * (300 << 10))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, expected in (
        ("absent.yaml", "cannot be read: No such file"),
        ("big.yaml", "is larger than 262144 bytes"),
        ("binary.yaml", "is not UTF-8 text"),
    ):
        with pytest.raises(PipelineError, match=expected):
            load_pipeline(tmp_path / name)


GOOD: dict[str, Callable[[dict[str, Any]], None]] = {
    "base": lambda document: None,
    "stages in any order": lambda document: document["spec"]["stages"].reverse(),
    "status is ignored": edit("status", {"conditions": [{"x": 1}]}),
    "metadata of a live object": edit("metadata", {"name": "a-b", "uid": "x", "generation": 3, "managedFields": [{}]}),
    "one stage": lambda document: document["spec"].update(stages=document["spec"]["stages"][:1]),
    "two talkers": lambda document: document["spec"]["stages"].extend(
        [
            {"name": "talker2", "component": "qwen2_5_omni/talker", "inputs": [{"from": "thinker"}]},
            {
                "name": "wav2",
                "component": "qwen2_5_omni/token2wav",
                "inputs": [{"from": "talker2"}],
                "outputs": ["Audio"],
            },
        ]
    ),
    "pvc": edit("spec/model/uri", "pvc://models/qwen/omni"),
    "file": edit("spec/model/uri", "file:///models/omni"),
    "suspend": edit("spec/suspend", True),
    "name as long as fits": edit("metadata/name", "x" * 44),
    "quantities": edit(f"{S0}/resources", {"limits": {"cpu": 2, "memory": "16Gi"}, "requests": {"cpu": "500m"}}),
    "placement": edit(
        "spec/defaults",
        {
            "image": "registry.example:5000/omni/omnipipeline@sha256:" + "0" * 64,
            "imagePullSecrets": [{"name": "pull"}],
            "runtimeClassName": "nvidia",
            "nodeSelector": {"nvidia.com/gpu.product": "H100"},
            "tolerations": [{"operator": "Exists"}, {"key": "gpu", "value": "yes", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                        ]
                    }
                },
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "weight": 1,
                            "podAffinityTerm": {
                                "topologyKey": "kubernetes.io/hostname",
                                "labelSelector": {"matchLabels": {"app": "x"}},
                            },
                        }
                    ]
                },
            },
            "priorityClassName": "high",
            "podLabels": {"team": "speech", "example.com/cost": "a"},
            "podAnnotations": {"example.com/note": "any text: at all"},
            "topology": [{"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 2}],
        },
    ),
    "rollout": edit("spec/rollout", {"strategy": "Recreate", "maxSurge": "25%", "maxUnavailable": 1}),
}


@pytest.mark.parametrize("case", GOOD, ids=lambda name: name.replace(" ", "-"))
def test_good_pipeline_is_accepted(case: str) -> None:
    parse_pipeline(make(GOOD[case]))


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_samples_are_valid_and_survive_a_round_trip(path: Path) -> None:
    pipeline = load_pipeline(path)
    dumped = yaml.safe_dump(pipeline.model_dump(mode="json", by_alias=True, exclude_defaults=True))
    assert parse_pipeline(dumped) == pipeline
    assert pipeline.metadata.name == path.stem


def test_dates_stay_text() -> None:
    text = yaml.safe_dump(BASE).replace("name: omni\n", "name: omni\n  annotations: {day: 2026-01-01}\n")
    assert parse_pipeline(text).metadata.annotations == {"day": "2026-01-01"}


@pytest.mark.parametrize(
    ("upstream", "cycles"),
    [
        ({}, []),
        ({"b": "a", "c": "a"}, []),
        ({"a": "a"}, [["a"]]),
        ({"a": "b", "b": "a"}, [["b", "a"]]),
        ({"a": "c", "b": "a", "c": "b", "d": "c"}, [["b", "c", "a"]]),
        ({"a": "b", "b": "a", "c": "d", "d": "c"}, [["b", "a"], ["d", "c"]]),
    ],
)
def test_find_cycles(upstream: dict[str, str], cycles: list[list[str]]) -> None:
    assert find_cycles(upstream) == cycles
