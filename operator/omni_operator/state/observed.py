"""The observed state of one pipeline in one reconcile: the input of every decision, collected by `observe.py`.

It comes from several watches, so parts of it may be older than others. A change of any part causes a new reconcile.
Nothing here reads a clock or the API.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from omni_kube.objects import Manifest, controller_of, is_terminating, value_at
from omni_operator.kinds import ChildKey
from omni_operator.names import DESIRED_HASH_ANNOTATION, is_child_name, stage_name, stage_selector
from omni_proto.pod_contract import GRPC_PORT, GRPC_PORT_NAME, PIPELINE_LABEL


@dataclass(frozen=True, slots=True)
class Observed:
    """One pipeline and the live objects that affect it, each with apiVersion and kind (which lists omit)."""

    pipeline: Manifest
    """The OmniPipeline as the API server holds it, status included."""
    children: Mapping[ChildKey, Manifest] = field(default_factory=dict)
    """Live objects of the child kinds that carry the pipeline's label or its ownerReference. Also objects of other
    owners that have the name of a child, which are reported as conflicts."""
    pods: Sequence[Manifest] = ()
    """Pods that carry the pipeline's label, terminating ones included."""
    replica_sets: Sequence[Manifest] = ()
    """ReplicaSets that carry the pipeline's label."""
    endpoints: Mapping[str, int] = field(default_factory=dict)
    """Number of ready endpoints by Service name, from EndpointSlices. An endpoint in several slices counts once. A
    Service without a ready endpoint has 0 or is absent."""
    activations: Sequence[Manifest] = ()
    """The operator's own EndpointSlices, by which the Service leads to the gateway; see rollout/activation.py."""
    can_scale: bool = True
    """Whether the operator can keep OmniStages: the cluster has them, and the operator's Role too."""

    @property
    def uid(self) -> str:
        """Uid of the pipeline."""
        return str(self.pipeline["metadata"]["uid"])

    @property
    def name(self) -> str:
        """Name of the pipeline."""
        return str(self.pipeline["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Namespace of the pipeline."""
        return str(self.pipeline["metadata"]["namespace"])

    @property
    def generation(self) -> int:
        """Generation of the pipeline's spec."""
        return int(self.pipeline["metadata"]["generation"])

    def child(self, kind: str, name: str) -> Manifest | None:
        """Returns the live child with that kind and name, None if there is none."""
        return self.children.get(ChildKey(kind, name))

    def owns(self, child: Manifest) -> bool:
        """Returns whether a child belongs to this pipeline: the pipeline controls it, or it is an orphan of it.

        An orphan has the operator's label and annotation and a child's name, but no controller: it was restored from a
        backup without its ownerReferences, or its pipeline was deleted without its children. The next apply makes the
        pipeline its owner. A copy that a user made of a child, under another name, is no orphan.
        """
        owner = controller_of(child)
        if owner is not None:
            return str(owner["uid"]) == self.uid
        labels = child["metadata"].get("labels") or {}
        return labels.get(PIPELINE_LABEL) == self.name and is_sealed(child) and is_child_name(child, self.name)


def is_sealed(child: Manifest) -> bool:
    """Returns whether a child has the annotation that only the operator writes."""
    return DESIRED_HASH_ANNOTATION in (child["metadata"].get("annotations") or {})


def find_service_problem(observed: Observed, name: str, selector: Mapping[str, str]) -> str:
    """Returns what is wrong with a Service that must have the selector; empty if it leads to the right pods.

    It may have no ready endpoint even then: see has_endpoints.
    """
    service = observed.child("Service", name)
    if service is None:
        return f"Service {name} does not exist"
    if not observed.owns(service):
        return f"Service {name} is not the pipeline's"
    if is_terminating(service):
        return f"Service {name} is being deleted"
    if value_at(service, "spec", "selector", default={}) != selector:
        return f"Service {name} does not select the pods that serve"
    if value_at(service, "spec", "type", default="") == "ExternalName":
        return f"Service {name} leads to another host, because its type is ExternalName"
    ports = value_at(service, "spec", "ports", default=())
    leads = any(one.get("port") == GRPC_PORT and one.get("targetPort") in (GRPC_PORT_NAME, GRPC_PORT) for one in ports)
    return "" if leads else f"Service {name} has no port {GRPC_PORT} that leads to the pods' port"


def has_endpoints(observed: Observed, name: str) -> bool:
    """Returns whether a Service leads to a ready pod."""
    return observed.endpoints.get(name, 0) > 0


def find_stage_problem(observed: Observed, stage: str, revision: str) -> str:
    """Returns what is wrong with the Service of a stage of a revision; empty if it selects the right pods."""
    name = stage_name(observed.name, stage, revision)
    return find_service_problem(observed, name, stage_selector(observed.name, stage, revision))


def is_reachable(observed: Observed, stage: str, revision: str) -> bool:
    """Returns whether a client can connect to a stage of a revision through its Service."""
    is_right = not find_stage_problem(observed, stage, revision)
    return is_right and has_endpoints(observed, stage_name(observed.name, stage, revision))
