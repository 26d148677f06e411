"""The operator checks components as the CRD's CEL rules do. A component that is not built in gives a warning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_operator.rollout.decide import parse_live_pipeline
from omni_proto.pipeline import PipelineError, devices_of, load_pipeline, parse_pipeline
from omni_proto.pipeline.read.offline import parse_checked
from omni_proto.pipeline.rules.component_checks import (
    check_components,
    list_late_edges,
    list_likely_mistakes,
    list_unknown_components,
    list_unknown_voices,
    list_warnings,
)
from support.specs.odd_components import ODD_COMPONENTS_BAD, ODD_COMPONENTS_GOOD
from support.specs.spec_edits import edit
from support.specs.spec_mutations import mutated
from support.specs.spec_table import GOOD, make
from support.tables import each_row


@each_row("case", ODD_COMPONENTS_BAD, ids=lambda name: name.replace(" ", "-"))
def test_what_the_rules_refuse_is_an_invalid_spec_to_the_operator(case: str) -> None:
    """The operator, too, refuses every spec that the CRD's rules on components refuse."""
    bad = ODD_COMPONENTS_BAD[case]
    document = make(*bad.edits)
    document["metadata"]["namespace"] = "models"
    with pytest.raises(PipelineError) as caught:
        parse_live_pipeline(document)
    fields = [problem.field for problem in caught.value.problems]
    where = bad.field if bad.field != "spec.stages" else "spec.stages["
    assert any(field.startswith(where) for field in fields), fields
    assert all(";" in problem.message or ":" in problem.message for problem in caught.value.problems)


@each_row("case", GOOD, ids=lambda name: name.replace(" ", "-"))
def test_what_the_rules_accept_is_accepted(case: str) -> None:
    assert check_components(parse_checked(json.dumps(make(*GOOD[case])))) == []


def test_random_edits_that_the_rules_accept_are_accepted() -> None:
    accepted = 0
    for document in mutated(7, 300):
        try:
            pipeline = parse_checked(json.dumps(document))
        except PipelineError:
            continue
        accepted += 1
        assert check_components(pipeline) == []
    assert accepted > 30


def test_a_component_that_is_not_built_in_is_a_warning() -> None:
    pipeline = parse_pipeline(json.dumps(make(*GOOD["a misspelt component, which may be a custom one"])))
    (warning,) = list_unknown_components(pipeline)
    assert str(warning) == (
        "spec.stages[0].component: qwen2_5_omni/thinkr is not built in; the stage's image must bring it, or the stage "
        "does not start; did you mean qwen2_5_omni/thinker?"
    )
    assert list_unknown_components(parse_pipeline(json.dumps(make()))) == []


def test_a_model_that_no_stage_uses_is_a_warning() -> None:
    document = make(*GOOD["every stage has a model of its own"])
    assert list_likely_mistakes(parse_pipeline(json.dumps(document))) == []
    document["spec"]["model"] = {"uri": "hf://org/unused"}
    (warning,) = list_likely_mistakes(parse_pipeline(json.dumps(document)))
    assert str(warning) == "spec.model: no stage uses it: every stage has a model of its own; remove it"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("generic/llmm", "generic/llm"),
        ("generic/llms", "generic/llm"),
        ("qwen25_omni/talker", "qwen2_5_omni/talker"),
        ("qwen2_5_omni/token2wave", "qwen2_5_omni/token2wav"),
        ("qwen3omni/code2wav", "qwen3_omni/code2wav"),
        ("qwen3_omni_moe/thinker", "qwen3_omni/thinker"),
        ("whisper/asr", "asr/whisper"),
        ("llm/generic", "generic/llm"),
    ],
)
def test_a_mistyped_component_has_a_suggestion(written: str, meant: str) -> None:
    resource = make()
    resource["spec"]["stages"][0]["component"] = written
    assert f"did you mean {meant}?" in str(list_warnings(parse_pipeline(json.dumps(resource)))[0])


@pytest.mark.parametrize(
    "name", ["nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared", "gpu.intel.com/i915", "tencent.com/vcuda-core"]
)
def test_several_devices_that_are_no_gpus_by_name_cause_a_warning(name: str) -> None:
    resource = make()
    resource["spec"]["stages"][0]["resources"] = {"limits": {name: 2, "memory": "8Gi"}}
    (warning,) = list_warnings(parse_pipeline(json.dumps(resource)))
    assert warning.field == f"spec.stages[0].resources.limits[{name}]"
    assert "the stage gets 2 devices, but they count as one" in warning.message
    resource["spec"]["stages"][0]["resources"]["limits"][name] = 1
    assert list_warnings(parse_pipeline(json.dumps(resource))) == []


@pytest.mark.parametrize(
    ("resources", "count"),
    [
        ({"limits": {"cpu": 8}}, 0),
        ({"limits": {"rdma/hca": 1, "smarter-devices/fuse": 1}}, 0),
        ({"limits": {"nvidia.com/gpu": 4}}, 4),
        ({"limits": {"nvidia.com/mig-3g.40gb": 1}}, 1),
        ({"limits": {"nvidia.com/gpu.shared": 2}}, 1),
        ({"limits": {"google.com/tpu": 4}}, 1),
        ({"limits": {"habana.ai/gaudi": 1}}, 1),
        ({"limits": {"amd.com/gpu": 2}}, 2),
        ({"claims": [{"name": "gpu"}]}, 1),
    ],
)
def test_other_accelerators_and_claims_count_as_one_device(resources: dict[str, Any], count: int) -> None:
    resource = make()
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    resource["spec"]["stages"][0] |= {"resources": resources, "resourceClaims": claims}
    pipeline = parse_pipeline(json.dumps(resource))
    assert devices_of(pipeline.spec.stages[0]) == count


@pytest.mark.parametrize(
    ("component", "likely"),
    [("generic/llmm", True), ("our_family/reader", False), ("acme/talker", False), ("generic/llm", False)],
)
def test_the_status_names_no_component_of_a_users_own_family(component: str, likely: bool) -> None:
    """A pipeline of the user's own family would otherwise have the warning for good."""
    resource = make()
    resource["spec"]["stages"] = [{"name": "a", "component": component, "outputs": ["Text"]}]
    resource["spec"]["stages"][0]["resources"] = {"limits": {"rdma/hca": 1}}
    assert bool(list_likely_mistakes(parse_pipeline(json.dumps(resource)))) == likely


@pytest.mark.parametrize(
    ("edge", "component", "warned"),
    [
        ({}, "qwen2_5_omni/talker", True),
        ({"mode": "Full"}, "qwen2_5_omni/talker", False),
        ({"mode": "Stream"}, "qwen2_5_omni/talker", False),
        ({}, "my_family/talker", False),
    ],
)
def test_an_edge_without_mode_that_could_stream_is_a_warning(
    edge: dict[str, Any], component: str, warned: bool
) -> None:
    stages = [
        {"name": "thinker", "component": "qwen2_5_omni/thinker", "outputs": ["Text"]},
        {"name": "talker", "component": component, "inputs": [{"from": "thinker", **edge}]},
    ]
    document = make()
    document["spec"]["stages"] = stages
    found = list_late_edges(parse_pipeline(json.dumps(document)))
    assert [item.field for item in found] == (["spec.stages[1].inputs[0].mode"] if warned else [])
    assert all("set mode: Stream" in str(item) for item in found)


def test_an_alias_of_a_voice_that_no_published_checkpoint_has_is_a_warning() -> None:
    """A user's own checkpoint may have the voice, so the API server cannot refuse the alias."""

    def find(voices: dict[str, str], *edits: Any) -> list[str]:
        return [str(item) for item in list_unknown_voices(parse_pipeline(json.dumps(make(*edits, _voices(voices)))))]

    assert find({"alloy": "chelsie", "echo": "Ethan"}) == []
    assert find({"alloy": "Cherry"}) == [
        "spec.aliases.voices[alloy]: Cherry is no voice of the published checkpoints, which have Chelsie, Ethan; "
        "unless the checkpoint has it, requests for alloy are refused; name one of these"
    ]
    assert find({"Chelsie": "Ethan"}) == [
        "spec.aliases.voices[Chelsie]: is itself a voice, which takes precedence; remove the alias"
    ]
    assert find({"alloy": "any"}, *ODD_COMPONENTS_GOOD["talker reads a custom component"]) == []


def _voices(voices: dict[str, str]) -> Any:
    return edit("spec/aliases", {"voices": voices})


def test_no_sample_leaves_the_mode_out() -> None:
    """Every sample sets the mode of each edge that could stream."""
    samples = sorted((Path(__file__).parents[4] / "manifests" / "samples").glob("*.yaml"))
    pipelines = [load_pipeline(path) for path in samples]
    assert len(pipelines) > 5
    assert [problem for pipeline in pipelines for problem in list_late_edges(pipeline)] == []
