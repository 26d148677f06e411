"""A state machine with the invariants of every rollout, under random edits, failures, deletions and crashes.

1. As long as a pod exists, the Services that its configuration names exist and are of its own revision. The stages
   behind these Services are not scaled to 0.
2. While some revision's set of stages is fully available, the entry Service is never switched to a set that is not.
   After the first set has served, a set always serves.
3. After the last edit of the spec the cluster settles: the operator writes nothing more. If the target, which
   is the revision of the current spec, is available, only its children exist.
4. An operator that crashes after any write reaches the same final state as one that does not crash.

Serving may have gaps, and Services may be missing, after a user has suspended the pipeline, changed its strategy or
deleted an object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, assume, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from omni_kube.objects import Manifest
from omni_operator.desired.build_settings import BuildSettings, Owner
from omni_operator.desired.children import build_revision_set, build_shared
from omni_operator.desired.revision import compute_revision
from omni_operator.kinds import ChildKey, key_of
from omni_operator.names import stage_name
from omni_operator.rollout.decide import parse_live_pipeline, read_snapshots
from omni_operator.rollout.plan import Prune
from omni_operator.rollout.replicas import first_replicas
from omni_operator.rollout.rollout import RolloutView
from omni_operator.state.live import compute_live_sets
from omni_proto.pipeline import OmniPipeline
from omni_proto.pod_contract import REVISION_LABEL
from support.operator.operator_pipelines import make_stages
from support.operator.simulated_api import member_of
from support.operator.simulated_cluster import SimulatedCluster
from support.operator.simulated_workloads import BAD_IMAGE

SETTINGS = BuildSettings()
THINKER, TALKER, TOKEN2WAV = make_stages()
GRAPHS = {
    "three": [THINKER, TALKER, TOKEN2WAV],
    "renamed": [THINKER, {**TALKER, "name": "speaker"}, {**TOKEN2WAV, "inputs": [{"from": "speaker", "mode": "Full"}]}],
    "entry renamed": [
        {**THINKER, "name": "brain"},
        {**TALKER, "inputs": [{"from": "brain", "mode": "Full"}]},
        TOKEN2WAV,
    ],
    "two": [THINKER, {**TALKER, "component": "ours/speaker", "outputs": ["Audio"]}],
    "one": [THINKER],
}
IMAGES = ["stage:1", "stage:2", BAD_IMAGE]


class Rollouts(RuleBasedStateMachine):
    """Random steps, in any order, of a user, of an operator that may crash, and of the cluster."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = SimulatedCluster(
            {
                "apiVersion": "omnipipeline.io/v1alpha1",
                "kind": "OmniPipeline",
                "metadata": {"name": "demo", "namespace": "models", "uid": "0b1c", "generation": 1},
                "spec": {
                    "model": {"uri": "file:///models/tiny"},
                    "defaults": {"image": "stage:1"},
                    "stages": GRAPHS["three"],
                },
            }
        )
        self.cluster.before_write.append(self.check_write)
        self.cluster.before_reconcile.append(self.note_available)
        self.available: frozenset[str] = frozenset()
        """The revisions that were available when the operator decided. Its own writes may then make one unavailable."""
        self.specs: dict[str, OmniPipeline] = {}
        self.disturbed = False
        """Whether the user has suspended the pipeline, changed its strategy or deleted an object."""
        self.served: str | None = None
        self.remember()

    # --- steps of a user

    @rule(graph=st.sampled_from(sorted(GRAPHS)))
    def edit_graph(self, graph: str) -> None:
        self.edit(stages=GRAPHS[graph])

    @rule(image=st.sampled_from(IMAGES))
    def edit_image(self, image: str) -> None:
        self.edit(defaults={"image": image})

    @rule(number=st.integers(1, 3), replicas=st.integers(1, 3))
    def edit_replicas(self, number: int, replicas: int) -> None:
        stages = [dict(stage) for stage in self.cluster.pipeline["spec"]["stages"]]
        stages[number % len(stages)]["replicas"] = replicas
        self.edit(stages=stages)

    @rule(seconds=st.sampled_from([100, 300]))
    def edit_in_place(self, seconds: int) -> None:
        self.edit(timeouts={"request": seconds})

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self.disturbed = True
        self.edit(suspend=suspend)

    @rule(strategy=st.sampled_from(["BlueGreen", "Recreate"]))
    def edit_strategy(self, strategy: str) -> None:
        self.disturbed = True
        self.edit(rollout={"strategy": strategy})

    @rule(capacity=st.sampled_from([None, 3, 6]))
    def edit_capacity(self, capacity: int | None) -> None:
        self.cluster.capacity = capacity

    @precondition(lambda self: self.cluster.children)
    @rule(index=st.integers(0, 1000))
    def delete_child(self, index: int) -> None:
        keys = sorted(self.cluster.children)
        key = keys[index % len(keys)]
        # A snapshot is the only record of its revision's spec. test_rollout_scenarios.py tests what its deletion does.
        assume(key.kind != "ControllerRevision")
        self.disturbed = True
        self.cluster.delete(key)

    @precondition(lambda self: self.cluster.pods)
    @rule(index=st.integers(0, 1000))
    def delete_pod(self, index: int) -> None:
        self.disturbed = True
        pods = sorted(self.cluster.pods)
        self.cluster.terminate(self.cluster.pods[pods[index % len(pods)]])

    # --- steps of the operator and the cluster

    @rule(most_writes=st.one_of(st.none(), st.integers(0, 20)))
    def operator_round(self, most_writes: int | None) -> None:
        self.cluster.reconcile(most_writes)

    @rule(step=st.sampled_from(SimulatedCluster.STEPS))
    def cluster_step(self, step: str) -> None:
        getattr(self.cluster, step)()

    @rule(rounds=st.integers(1, 8))
    def time_passes(self, rounds: int) -> None:
        for _ in range(rounds):
            self.cluster.reconcile()
            for step in SimulatedCluster.STEPS:
                getattr(self.cluster, step)()
                self.check_all()

    # --- invariants

    @invariant()
    def check_all(self) -> None:
        self.check_downstreams_exist()
        self.check_serving()

    def check_downstreams_exist(self) -> None:
        for pod in self.cluster.pods.values():
            stage, revision = member_of(pod)
            for below in self.readers(revision, stage):
                service = ChildKey("Service", stage_name("demo", below, revision))
                assert self.disturbed or service in self.cluster.children, f"{service} of a pod of {stage} is gone"
            for volume in pod["spec"]["volumes"]:
                if "configMap" in volume:
                    key = ChildKey("ConfigMap", volume["configMap"]["name"])
                    assert self.disturbed or key in self.cluster.children, f"{key} of a pod is gone"

    def check_serving(self) -> None:
        if self.disturbed:
            return
        selected = self.cluster.selected()
        if selected is not None and self.view(self.specs).can_serve(selected):
            self.served = selected
        elif self.served is not None:
            raise AssertionError(f"nothing serves: {self.served} did, {selected} is selected")

    def check_write(self, write: Manifest | Prune) -> None:
        if isinstance(write, Prune):
            if write.key.kind == "Deployment":
                deployment = self.cluster.children[write.key]
                self.check_end(*member_of(deployment))
            return
        kind, name = key_of(write)
        if kind == "Deployment":
            live = self.cluster.children.get(ChildKey(kind, name))
            if live is not None and live["spec"]["replicas"] and not write["spec"]["replicas"]:
                self.check_end(*member_of(write))
        if kind == "ConfigMap":
            text = write["data"]["stage.yaml"]
            own = write["metadata"]["labels"][REVISION_LABEL]
            assert all(f"-{own}.models" in line for line in text.splitlines() if "dns:///" in line)
        if (kind, name) == ("Service", "demo") and name in {key.name for key in self.cluster.children}:
            self.check_switch(self.cluster.selected(), write["spec"]["selector"][REVISION_LABEL])

    def check_end(self, stage: str, revision: str) -> None:
        """Checks that a stage ends only after its upstream stage's pods have ended, and not while its set serves."""
        serves = revision == self.cluster.selected() and self.view(self.specs).can_serve(revision)
        assert self.disturbed or not serves, f"{stage} ends while its set ({revision}) is selected"
        for above in self.writers(revision, stage):
            assert not self.cluster.revision_pods(revision, above), f"{stage} ends before {above} ({revision})"

    def check_switch(self, before: str | None, after: str) -> None:
        pipeline = self.specs[self.target()]
        if before == after or pipeline.spec.suspend or pipeline.spec.rollout.strategy == "Recreate":
            return
        if after not in self.available:
            assert not self.available, f"switched to {after}, which is not available, while {self.available} are"

    def note_available(self) -> None:
        view = self.view({**self.specs, **read_snapshots(self.cluster.observe(), self.target())})
        self.available = frozenset(revision for revision in view.sets if view.is_available(revision))

    def teardown(self) -> None:
        """Checks that the cluster settles in the state that the spec describes, whatever happened before."""
        self.cluster.settle()
        writes, status = self.cluster.writes, self.cluster.status_writes
        self.cluster.reconcile()
        assert (self.cluster.writes, self.cluster.status_writes) == (writes, status), "an idle reconcile wrote"
        self.check_rest()
        self.cluster.capacity = None
        self.edit(defaults={"image": "stage:3"})
        self.cluster.settle()
        self.check_rest()
        self.check_one_revision()

    def check_rest(self) -> None:
        target, serving = self.target(), self.cluster.selected()
        assert self.cluster.revisions() <= {target, serving}
        if self.view(self.specs).is_available(target):
            self.check_one_revision()

    def check_one_revision(self) -> None:
        pipeline, target = parse_live_pipeline(self.cluster.pipeline), self.target()
        owner = Owner("demo", "models", "0b1c")
        desired = [
            *build_shared(owner, target),
            *build_revision_set(pipeline, target, first_replicas(pipeline), owner, SETTINGS),
        ]
        assert set(self.cluster.children) == {key_of(child) for child in desired}
        for child in desired:
            live = self.cluster.children[key_of(child)]
            assert live["metadata"]["annotations"] == child["metadata"]["annotations"]
        assert self.cluster.condition("Progressing")[0] == "False"

    # --- helpers

    def edit(self, **spec: Any) -> None:
        self.cluster.edit(**spec)
        self.remember()

    def remember(self) -> None:
        pipeline = parse_live_pipeline(self.cluster.pipeline)
        self.latest = compute_revision(pipeline, SETTINGS.default_image)
        self.specs[self.latest] = pipeline

    def target(self) -> str:
        """Returns the revision of the current spec."""
        return self.latest

    def view(self, pipelines: Mapping[str, OmniPipeline]) -> RolloutView:
        """Returns the current state of the revisions that exist."""
        observed = self.cluster.observe()
        target = self.target()
        sets = compute_live_sets(observed, self.cluster.now)
        return RolloutView(pipelines, target, observed, sets, self.cluster.selected(), self.cluster.now)

    def readers(self, revision: str, stage: str) -> list[str]:
        stages = self.specs[revision].spec.stages
        return [item.name for item in stages if item.inputs and item.inputs[0].source == stage]

    def writers(self, revision: str, stage: str) -> list[str]:
        return [edge.source for edge in self.specs[revision].stage(stage).inputs]


MACHINE_SETTINGS = settings(
    max_examples=int(os.environ.get("OMNI_ROLLOUT_EXAMPLES", "20")),
    stateful_step_count=30,
    derandomize="OMNI_ROLLOUT_EXAMPLES" not in os.environ,
    suppress_health_check=list(HealthCheck),
)
