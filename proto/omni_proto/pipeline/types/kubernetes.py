"""Kubernetes-shaped parts of an OmniPipeline: what a cluster needs to place a stage's pods and to pull their image.

Field names and meanings are those of core/v1 (https://kubernetes.io/docs/reference/kubernetes-api/). Only fields that
the resource supports are here. Every list, map and string is bounded. Settings of pods are in pods.py.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, StringConstraints

from omni_proto.stage_config import ConfigModel

GPU_RESOURCES: Final = ("nvidia.com/gpu", "amd.com/gpu")
"""The extended resources that count GPUs, the most common one first."""
ACCELERATOR_PATTERN: Final = r"(?i)gpu|cuda|/mig-|gaudi|tpu|npu|neuron|/i915|/xe\b"
"""Found in the names of other accelerators: MIG profiles, shared GPUs, TPUs, Gaudi ... A stage that has some counts as
one with one GPU, because the name does not say how much of a device it is."""


def list_map(*keys: str) -> dict[str, JsonValue]:
    """Returns json_schema_extra for a list field whose items are identified and merged by these keys."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


LIST_SET: Final[dict[str, JsonValue]] = {"x-kubernetes-list-type": "set"}
"""json_schema_extra for a list field whose items are unique. Lists without a list type are replaced as a whole."""
SERVER_DEFAULT: Final[dict[str, JsonValue]] = {"x-server-default": True}
"""json_schema_extra for an object that the API server fills in if it is missing. Other objects are not filled in.
Otherwise every stage in the cluster would list defaults that nobody wrote."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
SUBDOMAIN_PATTERN: Final = rf"^{SUBDOMAIN}$"
LABEL_KEY_PATTERN: Final = rf"^({SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?$"
LABEL_VALUE_PATTERN: Final = r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"
DATA_KEY_PATTERN: Final = r"^[-._a-zA-Z0-9]+$"
NAMESPACE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
NAME_IN_POD_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_PATH: Final = "[a-z0-9]+([._-]+[a-z0-9]+)*"
IMAGE_PATTERN: Final = (
    rf"^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?{_PATH}(/{_PATH})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?$"
)
"""HOST:PORT/PATH:TAG@DIGEST, as container runtimes read it. A pod with any other name of an image keeps its GPU, and
never starts (InvalidImageName)."""
PERCENT_PATTERN: Final = r"^(100|[1-9]?[0-9])%$"

SubdomainName = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=SUBDOMAIN_PATTERN)]
LabelKey = Annotated[str, StringConstraints(min_length=1, max_length=317, pattern=LABEL_KEY_PATTERN)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=LABEL_VALUE_PATTERN)]
AnnotationValue = Annotated[str, StringConstraints(max_length=4096)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=32)]
Annotations = Annotated[dict[LabelKey, AnnotationValue], Field(max_length=32)]
Quantity = (
    Annotated[int, Field(ge=0, le=2**53)] | Annotated[str, StringConstraints(max_length=32, pattern=QUANTITY_PATTERN)]
)
DataKey = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=DATA_KEY_PATTERN)]
ImageName = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=IMAGE_PATTERN)]
IntOrPercent = (
    Annotated[int, Field(ge=0, le=64)] | Annotated[str, StringConstraints(pattern=PERCENT_PATTERN, max_length=4)]
)
NameInPod = Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=NAME_IN_POD_PATTERN)]
Weight = Annotated[int, Field(ge=1, le=100)]


class LocalReference(ConfigModel):
    """An object in the pipeline's namespace."""

    name: SubdomainName
    """Name of the object."""


class SecretKeyReference(ConfigModel):
    """One key of a Secret in the pipeline's namespace."""

    name: SubdomainName
    """Name of the Secret."""
    key: DataKey = "token"
    """Key in the Secret."""


class ResourceClaim(ConfigModel):
    """Devices of one of the pod's resourceClaims."""

    name: NameInPod
    """Name in resourceClaims."""
    request: NameInPod | None = None
    """Request of the claim. Default: all devices of the claim."""


class Resources(ConfigModel):
    """Resources of one stage pod, by Kubernetes' names: cpu, memory, nvidia.com/gpu ..."""

    limits: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Maximum that the pod may use. nvidia.com/gpu (or amd.com/gpu) here is the GPU count of the stage, and its
    tensor parallel size."""
    requests: Annotated[dict[LabelKey, Quantity], Field(max_length=16)] = Field(default_factory=dict)
    """Resources that a node must have free for the pod. Default: the limits."""
    claims: Annotated[list[ResourceClaim], Field(max_length=8, json_schema_extra=list_map("name"))] = Field(
        default_factory=list
    )
    """Devices of the pod's resourceClaims (dynamic resource allocation). A stage with some counts as one with one
    GPU."""


class Toleration(ConfigModel):
    """Lets pods run on nodes with a matching taint."""

    key: LabelKey | None = None
    """Key of the taint. Without a key, operator Exists matches every taint."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """How key and value are compared."""
    value: LabelValue | None = None
    """Value of the taint, for operator Equal."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Default: every effect."""
    toleration_seconds: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """Seconds for which a NoExecute taint is tolerated. Default: forever."""


class NodeSelectorRequirement(ConfigModel):
    """A condition on one label or field of a node."""

    key: LabelKey
    """Key of the label, or name of the field."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    """How the values are compared."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(default_factory=list)
    """Values to compare with; none for Exists and DoesNotExist."""


class NodeSelectorTerm(ConfigModel):
    """Conditions, all of which a node must meet."""

    match_expressions: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Conditions on labels."""
    match_fields: Annotated[list[NodeSelectorRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Conditions on fields, e.g. metadata.name."""


class NodeSelector(ConfigModel):
    """Terms, at least one of which a node must meet."""

    node_selector_terms: Annotated[list[NodeSelectorTerm], Field(min_length=1, max_length=16)]
    """The terms."""


class PreferredSchedulingTerm(ConfigModel):
    """A term that raises a node's rank."""

    weight: Weight
    """Number that is added to the node's rank, 1 to 100."""
    preference: NodeSelectorTerm
    """The term."""


class NodeAffinity(ConfigModel):
    """On which nodes pods may or should run."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None
    """Nodes that pods need."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[PreferredSchedulingTerm], Field(max_length=16)
    ] = Field(default_factory=list)
    """Nodes that pods prefer."""


class LabelSelectorRequirement(ConfigModel):
    """A condition on one label of a pod."""

    key: LabelKey
    """Key of the label."""
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    """How the values are compared."""
    values: Annotated[list[LabelValue], Field(max_length=64)] = Field(default_factory=list)
    """Values to compare with; none for Exists and DoesNotExist."""


class LabelSelector(ConfigModel):
    """Selects pods by label."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels that pods must have."""
    match_expressions: Annotated[list[LabelSelectorRequirement], Field(max_length=16)] = Field(default_factory=list)
    """Conditions that pods must meet."""


class PodAffinityTerm(ConfigModel):
    """Pods to be near to, or far from."""

    label_selector: LabelSelector
    """The pods, in the pipeline's namespace."""
    topology_key: LabelKey
    """Label of nodes, e.g. kubernetes.io/hostname. Nodes with the same value are near to each other."""


class WeightedPodAffinityTerm(ConfigModel):
    """A term that raises a node's rank."""

    weight: Weight
    """Number that is added to the node's rank, 1 to 100."""
    pod_affinity_term: PodAffinityTerm
    """The term."""


class PodAffinity(ConfigModel):
    """Pods to be near to; as podAntiAffinity, pods to be far from."""

    required_during_scheduling_ignored_during_execution: Annotated[list[PodAffinityTerm], Field(max_length=16)] = Field(
        default_factory=list
    )
    """Terms that must all hold."""
    preferred_during_scheduling_ignored_during_execution: Annotated[
        list[WeightedPodAffinityTerm], Field(max_length=16)
    ] = Field(default_factory=list)
    """Terms that should hold."""


class Affinity(ConfigModel):
    """Where pods may or should run."""

    node_affinity: NodeAffinity | None = None
    """By labels of nodes."""
    pod_affinity: PodAffinity | None = None
    """Near to other pods."""
    pod_anti_affinity: PodAffinity | None = None
    """Far from other pods."""


class TopologySpread(ConfigModel):
    """How the replicas of a stage are spread. The operator adds the label selector."""

    topology_key: LabelKey = "kubernetes.io/hostname"
    """Label of nodes; each value of it is one domain."""
    max_skew: Annotated[int, Field(ge=1, le=100)] = 1
    """Largest difference between the numbers of replicas of two domains."""
    when_unsatisfiable: Literal["ScheduleAnyway", "DoNotSchedule"] = "ScheduleAnyway"
    """What to do with a pod that cannot be placed within maxSkew."""
