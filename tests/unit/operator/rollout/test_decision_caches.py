"""The caches of decisions: they never change a decision, and their size is bounded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from omni_kube.objects import Manifest, content_hash
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import key_of
from omni_operator.rollout import decide as module
from omni_operator.rollout.decide import REMEMBERED_SETS, Decision, decide, parse_live_pipeline
from omni_operator.rollout.replicas import Fate, first_replicas
from omni_operator.rollout.rollout import RolloutView
from omni_operator.state.observed import Observed
from omni_proto.pipeline import PipelineError
from support.operator.operator_pipelines import make_pipeline, make_stages

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
SETTINGS = BuildSettings(default_image="stage:1")
CACHES = (module._facts_of, module._type_checked, module._build_set, module._build_shared)


@pytest.fixture(autouse=True)
def forget() -> None:
    for cache in CACHES:
        cache.cache_clear()


def live(name: str = "p", uid: str = "u", **spec: Any) -> Manifest:
    return {
        "apiVersion": "omnipipeline.io/v1alpha1",
        "kind": "OmniPipeline",
        "metadata": {"name": name, "namespace": "ns", "uid": uid, "generation": 1, "resourceVersion": "9"},
        "spec": {"model": {"uri": "file:///models/tiny"}, "stages": make_stages(), **spec},
    }


def decide_first(manifest: Manifest, settings: BuildSettings = SETTINGS) -> Decision:
    """Returns the decision for a pipeline that has no children yet. Decides twice: both plans must be equal."""
    first, again = (decide(parse_live_pipeline(manifest), Observed(pipeline=manifest), settings, NOW) for _ in range(2))
    assert again.plan == first.plan
    return first


def build_directly(manifest: Manifest, settings: BuildSettings = SETTINGS) -> list[Manifest]:
    """Returns the children that a new pipeline should get, built without any cache."""
    spec = {key: value for key, value in manifest["spec"].items() if key != "stages"}
    metadata = manifest["metadata"]
    pipeline = make_pipeline(manifest["spec"]["stages"], name=metadata["name"], **spec)
    owner = Owner(metadata["name"], metadata["namespace"], metadata["uid"])
    revision = compute_revision(pipeline, settings.default_image)
    children = build_revision_set(pipeline, revision, first_replicas(pipeline), owner, settings)
    return [*build_shared(owner, revision), *children]


def applied(decision: Decision) -> dict[Any, str]:
    return {key_of(child): content_hash(child, 16) for child in decision.plan.apply}


def stages_with(**fields: Any) -> list[dict[str, Any]]:
    return [stage | fields for stage in make_stages()]


CHANGES: dict[str, tuple[Manifest, BuildSettings]] = {
    "nothing": (live(), SETTINGS),
    "another pipeline": (live("q"), SETTINGS),
    "replaced by one of the same name": (live(uid="v"), SETTINGS),
    "replicas": (live(stages=stages_with(replicas=2)), SETTINGS),
    "what no other stage sees": (live(stages=stages_with(nodeSelector={"a": "b"})), SETTINGS),
    "a field set to its default": (live(suspend=False), SETTINGS),
    "the model": (live(model={"uri": "file:///models/other"}), SETTINGS),
    "suspended": (live(suspend=True), SETTINGS),
    "the default image": (live(), replace(SETTINGS, default_image="stage:2")),
    "another setting": (live(), replace(SETTINGS, cluster_domain="example")),
    "PodMonitors": (live(), replace(SETTINGS, pod_monitors=True)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_decision_is_that_of_the_builders_whatever_was_decided_before(change: str) -> None:
    """A decision with warm caches plans the same children as the builders make without caches."""
    for manifest, settings in CHANGES.values():  # every case is cached before the one under test
        decide_first(manifest, settings)
    manifest, settings = CHANGES[change]
    wanted = {key_of(child): content_hash(child, 16) for child in build_directly(manifest, settings)}
    assert applied(decide_first(manifest, settings)) == wanted


def test_what_is_remembered_is_not_changed_by_decisions() -> None:
    """Later decisions do not modify the manifests of earlier ones."""
    first = decide_first(live())
    before = copy.deepcopy(first.plan.apply)
    for manifest, settings in CHANGES.values():
        decide_first(manifest, settings)
    assert first.plan.apply == before
    assert decide_first(live()).plan.apply == before


def test_a_spec_is_parsed_once_and_a_bad_one_refused_each_time() -> None:
    good = live()
    assert parse_live_pipeline(good) is parse_live_pipeline(copy.deepcopy(good) | {"status": {"readyStages": "0/3"}})
    edited = good | {"metadata": {**good["metadata"], "generation": 2}}
    assert parse_live_pipeline(edited).metadata.generation == 2
    assert parse_live_pipeline(good).metadata.generation == 1
    for _ in range(2):
        with pytest.raises(PipelineError, match="ns/p"):
            parse_live_pipeline(live(stages=[]))


def test_pipelines_are_distinguished_when_their_memory_is_reused() -> None:
    # CPython may reuse the id of a freed object for a new object of its size. A cache keyed by id would mix up specs.
    for number in range(3 * REMEMBERED_SETS):
        pipeline = make_pipeline(model={"uri": f"file:///models/{number}"})
        facts = module._facts_of(module._This(pipeline), "stage:1")
        assert facts.revision == compute_revision(pipeline, "stage:1")
        assert f"/models/{number}" in facts.spec
        del pipeline


def test_equal_pipelines_have_equal_facts() -> None:
    one, other = make_pipeline(), make_pipeline()
    assert module._This(one) != module._This(other)
    assert module._facts_of(module._This(one), "i") == module._facts_of(module._This(other), "i")
    assert module._facts_of(module._This(one), "i") != module._facts_of(module._This(one), "j")


def test_each_memory_is_bounded_and_used() -> None:
    """Each cache has at most REMEMBERED_SETS entries, and a repeated decision is a hit."""
    crowd = [live(f"p{number}") for number in range(REMEMBERED_SETS + 10)]
    for manifest in crowd:
        decide_first(manifest)
    for cache in CACHES:
        info = cache.cache_info()
        assert info.maxsize == REMEMBERED_SETS
        assert info.currsize == REMEMBERED_SETS
        assert info.hits >= len(crowd), "the second decision about each pipeline builds nothing"
        assert info.misses == len(crowd)


@pytest.mark.parametrize("fate", Fate)
def test_a_view_answers_alike_each_time(fate: Fate) -> None:
    """RolloutView.replicas returns the same result on every call."""

    def look() -> RolloutView:
        pipelines = {"r1": make_pipeline(stages_with(replicas=3)), "r2": make_pipeline()}
        return RolloutView(pipelines, "r1", Observed(pipeline=live()), {}, None, NOW)

    view = look()
    answers: list[Callable[[RolloutView], Any]] = [
        lambda view, revision=revision: view.replicas(revision, fate)  # type: ignore[misc]
        for revision in ("r1", "r2", "unknown")
    ]
    for _ in range(2):
        assert [answer(view) for answer in answers] == [answer(look()) for answer in answers]
