"""A small simulated cluster in memory, which drives the operator's decisions through complete rollouts.

It simulates the API server, the Deployment and ReplicaSet controllers, the garbage collector, the scheduler and the
kubelet. Every transition is one small step, so a test can choose the order of the steps. Objects have the form of
those in a real cluster, but few of the fields that a cluster adds: mainly those that the operator's decisions read.
Other tests check the operator on a real control plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from omni_operator.desired.build_settings import BuildSettings
from omni_operator.kinds import ChildKey, key_of
from omni_operator.rollout.decide import Decision, decide, read_live_spec
from omni_operator.rollout.plan import Prune, plan_targets
from omni_operator.state.observed import Observed, is_sealed
from omni_operator.state.slim import slim_seen
from omni_operator.status.assessment import ChildError
from omni_operator.status.events import EventData, compute_events
from omni_operator.status.status import compute_lost_status, compute_status, refuse_spec
from omni_proto.pipeline.types.scaling import STAGE_KIND
from omni_proto.pipeline.types.status import PipelineStatus
from support.operator.simulated_workloads import SimulatedWorkloads


@dataclass
class SimulatedCluster(SimulatedWorkloads):
    """The simulated cluster, and the operator in it."""

    status_writes: int = 0
    events: list[EventData] = field(default_factory=list)
    before_reconcile: list[Callable[[], None]] = field(default_factory=list)
    """Called at the start of each reconcile, before the decision."""
    after_report: list[Callable[[], None]] = field(default_factory=list)
    """Called after the status was computed, and written if it differs."""
    refused: set[str] = field(default_factory=set)
    """Kinds whose writes the API server refuses."""
    can_scale: bool = True
    """Whether the cluster has OmniStages."""

    def observe(self) -> Observed:
        """Returns what the operator sees: the parts of the objects that its store keeps.

        ConfigMaps of the operator are returned whole; of these, the real store keeps only metadata. Objects are not
        copied, because decisions do not change them.
        """
        return Observed(
            pipeline=self.pipeline,
            children={
                key: child if key.kind == "ConfigMap" and is_sealed(child) else slim_seen(child)
                for key, child in self.children.items()
            },
            pods=[slim_seen(pod) for pod in self.pods.values()],
            replica_sets=[slim_seen(replica_set) for replica_set in self.replica_sets.values()],
            endpoints=self.endpoints(),
            can_scale=self.can_scale,
        )

    def decide(self, settings: BuildSettings = BuildSettings()) -> Decision | None:  # noqa: B008 - frozen
        """Returns the operator's decision for the present state; None if no spec can be read."""
        observed = self.observe()
        spec = read_live_spec(observed, settings.default_image)
        if spec.pipeline is None:
            return None
        return decide(spec.pipeline, observed, settings, self.now, target=spec.revision)

    def reconcile(self, most_writes: int | None = None) -> int:
        """Reconciles once. Returns the number of writes to children.

        With `most_writes`, the operator dies after that many writes at the latest, and before it writes the status.
        """
        for hook in self.before_reconcile:
            hook()
        decision = self.decide()
        writes: list[Prune | dict[str, Any]] = (
            [*decision.plan.apply, *decision.plan.prune] if decision is not None else []
        )
        for number, write in enumerate(writes):
            if number == most_writes:
                return number
            kind, name = write.key if isinstance(write, Prune) else key_of(write)
            if kind in self.refused:
                if most_writes is None:
                    self.report([ChildError(f"{kind} {name}", "denied by a policy")], decision=self.decide())
                return number
            if isinstance(write, Prune):
                self.prune(write)
            else:
                self.apply(write)
        if most_writes is None:
            decision = self.decide() if writes else decision
            before = self.writes
            self.write_targets(decision)
            self.report(decision=decision if self.writes == before else self.decide())
        return len(writes)

    def write_targets(self, decision: Decision | None) -> None:
        """Gives OmniStages their first number of pods, and the one that follows from the entry's."""
        for live, replicas, _ in plan_targets(decision.pipeline, self.observe(), decision.rollout) if decision else ():
            if replicas is not None:
                self.scale(live["metadata"]["name"], replicas)

    def scale(self, name: str, replicas: int) -> None:
        """Sets the number of pods in an OmniStage, as kubectl scale does."""
        target = self.children[ChildKey(STAGE_KIND, name)]
        if target.get("spec") != {"replicas": replicas}:
            target["spec"] = {"replicas": replicas}
            self.writes += 1

    def report(self, errors: Sequence[ChildError] = (), *, decision: Decision | None) -> None:
        """Writes the status of the present state to the pipeline, if it differs. decision: what `decide` returns."""
        observed = self.observe()
        spec = read_live_spec(observed, "")
        halt = refuse_spec(spec.problem) if spec.problem else None
        if decision is None:
            status = compute_lost_status(observed, halt or refuse_spec(""), self.now)
        else:
            pipeline, rollout, plan = decision.pipeline, decision.rollout, decision.plan
            status = compute_status(
                pipeline, observed, rollout, plan, self.now, errors, ignored=spec.ignored, halt=halt
            )
        PipelineStatus.model_validate(status)
        if status != self.pipeline.get("status"):
            self.events += compute_events(self.pipeline.get("status"), status)
            self.pipeline["status"] = status
            self.status_writes += 1
        for hook in self.after_report:
            hook()

    def settle(self, rounds: int = 200) -> None:
        """Runs the operator and all steps until nothing changes. Raises RuntimeError after `rounds` rounds."""
        for _ in range(rounds):
            self.now += timedelta(seconds=1)
            before = (self.writes, self.status_writes)
            self.reconcile()
            moved = [getattr(self, step)() for step in self.STEPS]
            if not any(moved) and (self.writes, self.status_writes) == before:
                return
        raise RuntimeError(f"not settled after {rounds} rounds")
