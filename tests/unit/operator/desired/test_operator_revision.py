"""Which edits make a new revision and which do not. From a snapshot, exactly the same children are rebuilt."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from omni_operator.desired.build_settings import BuildSettings
from omni_operator.desired.children import build_revision_set
from omni_operator.desired.revision import compute_revision, dump_spec, latest_snapshots, read_snapshot, revision_of
from omni_operator.names import REVISION_LENGTH
from omni_operator.rollout.replicas import first_replicas
from omni_proto.pipeline import PipelineError, load_pipeline
from support.operator.operator_pipelines import OWNER, SETTINGS, Spec, build_set, make_pipeline, make_stages, pick
from support.tables import each_row

IMAGE = "stage:1"
Edit = Callable[[Spec], None]


def revision_after(edit: Edit, image: str = IMAGE) -> str:
    spec: Spec = {"model": {"uri": "hf://org/model"}, "stages": make_stages()}
    edit(spec)
    stages = spec.pop("stages")
    return compute_revision(make_pipeline(stages, **spec), image)


def set_in(*path: Any) -> Edit:
    """Returns an edit that sets one field of a spec: set_in("stages", 0, "replicas", 3)."""
    *parents, key, value = path

    def edit(spec: Spec) -> None:
        target: Any = spec
        for parent in parents:
            target = target.setdefault(parent, {}) if isinstance(parent, str) else target[parent]
        target[key] = value

    return edit


NOTHING: Edit = lambda spec: None  # noqa: E731

SAME_REVISION = {
    "replicas": set_in("stages", 0, "replicas", 5),
    "resources": set_in("stages", 1, "resources", {"limits": {"nvidia.com/gpu": 2}}),
    "limits": set_in("stages", 0, "limits", {"maxConcurrentRequests": 5}),
    "sampling": set_in("stages", 0, "defaultSampling", {"temperature": 0.5}),
    "memory of the engine": set_in("stages", 0, "engineArgs", {"gpuMemoryUtilization": 0.5}),
    "length": set_in("stages", 0, "engineArgs", {"maxModelLen": 4096}),
    "pod labels": set_in("defaults", "podLabels", {"team": "speech"}),
    "placement": set_in("stages", 2, "nodeSelector", {"gpu": "h100"}),
    "timeouts": set_in("timeouts", {"request": 60}),
    "rollout": set_in("rollout", {"strategy": "Recreate"}),
    "suspend": set_in("suspend", True),
    "token": set_in("model", "tokenSecretRef", {"name": "hub"}),
    "tls of the entry": set_in("entry", {"tls": {"secretName": "cert"}}),
    "cache": set_in("model", "cache", {"persistentVolumeClaim": "models"}),
    "main named": set_in("model", "revision", "main"),
    "the default image named": set_in("defaults", "image", IMAGE),
    "the default image named by a stage": set_in("stages", 0, "image", IMAGE),
    "the model named by a stage": set_in("stages", 1, "model", {"uri": "hf://org/model", "revision": "main"}),
    "the model named by every stage": lambda spec: spec.update(
        stages=[stage | {"model": spec["model"]} for stage in spec["stages"]], model=None
    ),
    "order of stages": lambda spec: spec["stages"].reverse(),
}

NEW_REVISION = {
    "uri": set_in("model", "uri", "hf://org/other"),
    "model revision": set_in("model", "revision", "v2"),
    "model of one stage": set_in("stages", 1, "model", {"uri": "hf://org/other"}),
    "model revision of one stage": set_in("stages", 1, "model", {"uri": "hf://org/model", "revision": "v2"}),
    "image": set_in("defaults", "image", "stage:2"),
    "image of one stage": set_in("stages", 2, "image", "stage:2"),
    "dtype": set_in("stages", 0, "engineArgs", {"dtype": "float16"}),
    "quantization": set_in("stages", 0, "engineArgs", {"quantization": "awq"}),
    "mode of an edge": set_in("stages", 1, "inputs", [{"from": "thinker", "mode": "Full"}]),
    "another edge": set_in("stages", 2, "inputs", [{"from": "thinker", "mode": "Full"}]),
    "component": set_in("stages", 0, "component", "generic/llm"),
    "outputs": set_in("stages", 0, "outputs", ["Text", "Audio"]),
    "one stage fewer": lambda spec: spec.update(stages=spec["stages"][:1]),
    "a stage renamed": lambda spec: spec["stages"][2].update(name="vocoder"),  # no stage has it as input
}


@each_row("edit", SAME_REVISION.values(), ids=SAME_REVISION)
def test_compatible_edits_keep_the_revision(edit: Edit) -> None:
    assert revision_after(edit) == revision_after(NOTHING)


@pytest.mark.parametrize("edit", NEW_REVISION.values(), ids=NEW_REVISION)
def test_edits_of_the_contract_make_a_new_revision(edit: Edit) -> None:
    revision = revision_after(edit)
    assert revision != revision_after(NOTHING)
    assert len(revision) == REVISION_LENGTH


def test_another_default_image_is_a_new_revision_unless_the_pipeline_names_one() -> None:
    assert revision_after(NOTHING, "stage:2") != revision_after(NOTHING)
    pinned = set_in("defaults", "image", "stage:9")
    assert revision_after(pinned, "stage:2") == revision_after(pinned)


def test_only_the_models_that_stages_use_count() -> None:
    def revision_of_models(shared: Spec | None, **own: Spec) -> str:
        stages = make_stages()
        for stage in stages:
            stage |= {"model": own[stage["name"]]} if stage["name"] in own else {}
        return compute_revision(make_pipeline(stages, model=shared), IMAGE)

    omni, other, own = {"uri": "hf://org/model"}, {"uri": "hf://org/other"}, {"uri": "pvc://models/talker"}
    mixed = revision_of_models(omni, talker=own)
    assert revision_of_models(None, thinker=omni, talker=own, token2wav=omni) == mixed
    assert revision_of_models(other, thinker=omni, talker=own, token2wav=omni) == mixed
    cached = omni | {"cache": {"persistentVolumeClaim": "models"}, "tokenSecretRef": {"name": "hub"}}
    assert revision_of_models(cached, talker=own) == mixed
    assert mixed not in (revision_of_models(omni, thinker=own), revision_of_models(other, talker=own))


def test_revision_of_a_spec_is_the_same_in_every_version_of_the_operator() -> None:
    """If this hash changed, an upgrade of the operator would start a second set of pods for every pipeline."""
    assert revision_after(NOTHING) == "bb4ba81"


@settings(max_examples=30)
@given(st.permutations(range(3)), st.integers(0, 50), st.integers(1, 64))
def test_neither_order_nor_sizes_count(order: list[int], replicas: int, requests: int) -> None:
    """The order of stages, their replicas and their limits do not change the revision."""
    stages = make_stages()
    for stage in stages:
        stage |= {"replicas": replicas, "limits": {"maxConcurrentRequests": requests}}
    shuffled = make_pipeline([stages[index] for index in order])
    assert compute_revision(shuffled, IMAGE) == compute_revision(make_pipeline(), IMAGE)


class TestSnapshots:
    """The children of a revision can be rebuilt from its ControllerRevision."""

    SPECS = {
        "plain": {},
        "suspended": {"suspend": True},
        "hub": {"model": {"uri": "hf://org/model", "tokenSecretRef": {"name": "t"}}},
        "models of stages": {
            "model": None,
            "stages": [stage | {"model": {"uri": f"hf://org/{stage['name']}"}} for stage in make_stages()],
        },
        "settings": {
            "defaults": {"tolerations": [{"operator": "Exists"}], "podLabels": {"team": "x"}, "topology": []},
            "timeouts": {"request": 12.5},
            "rollout": {"maxSurge": "25%", "maxUnavailable": 1},
        },
    }

    @pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
    def test_builds_the_same_set_whatever_the_operator_s_default_image_is_by_then(self, spec: Spec) -> None:
        pipeline = make_pipeline(generation=7, **copy.deepcopy(spec))
        children = build_set(pipeline)
        snapshot = read_snapshot(pick(children, "ControllerRevision"), OWNER.name)
        assert snapshot.revision == compute_revision(pipeline, SETTINGS.default_image)
        assert compute_revision(snapshot.pipeline, "whatever:3") == snapshot.revision
        later = BuildSettings(default_image="stage:2", pod_monitors=True)
        replicas = first_replicas(snapshot.pipeline)
        assert build_revision_set(snapshot.pipeline, snapshot.revision, replicas, OWNER, later) == children

    def test_name_follows_the_spec_because_data_cannot_be_changed(self) -> None:
        """A ControllerRevision's data is immutable, so another spec needs another name."""

        def name_of(**spec: Any) -> str:
            return str(pick(build_set(make_pipeline(**spec)), "ControllerRevision")["metadata"]["name"])

        assert name_of() != name_of(timeouts={"request": 60})
        assert name_of() == name_of(generation=5)

    def test_the_latest_of_a_revision_is_the_one_with_the_highest_number(self) -> None:
        old, new = (
            pick(build_set(make_pipeline(generation=g, timeouts={"request": g})), "ControllerRevision") for g in (9, 10)
        )
        other = pick(build_set(make_pipeline(model={"uri": "file:///other"})), "ControllerRevision")
        found = latest_snapshots([new, other, old], OWNER.name)
        assert found == {revision_of(new, OWNER.name): new, revision_of(other, OWNER.name): other}

    def test_revision_is_read_from_the_name_not_from_a_label_that_anyone_may_edit(self) -> None:
        item = pick(build_set(make_pipeline()), "ControllerRevision")
        revision = item["metadata"]["labels"]["omnipipeline.io/revision"]
        item["metadata"]["labels"]["omnipipeline.io/revision"] = "0000000"
        assert revision_of(item, OWNER.name) == revision

    def test_a_spec_that_is_no_longer_valid_is_refused_by_name(self) -> None:
        item = pick(build_set(make_pipeline()), "ControllerRevision")
        item["data"]["spec"]["stages"][0]["component"] = "os.system"
        with pytest.raises(PipelineError, match=item["metadata"]["name"]):
            read_snapshot(item, OWNER.name)

    def test_samples_survive_the_round_trip(self, request: pytest.FixtureRequest) -> None:
        for sample in sorted((request.config.rootpath / "manifests" / "samples").glob("*.yaml")):
            pipeline = load_pipeline(sample)
            children = build_set(pipeline)
            snapshot = read_snapshot(pick(children, "ControllerRevision"), pipeline.metadata.name)
            assert dump_spec(snapshot.pipeline) == pick(children, "ControllerRevision")["data"]["spec"]
