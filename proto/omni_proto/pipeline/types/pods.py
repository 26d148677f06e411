"""Settings of stage pods: image, environment, volumes, identity, placement and limits of time.

Field names and meanings are those of core/v1 and policy/v1, so that users can paste from a Deployment. What is not here
is the operator's business: commands, ports, probes, capabilities, writable volumes. RESERVED_* list the names that the
pods themselves rely on.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, StringConstraints

from omni_proto.pipeline.types.kubernetes import (
    Affinity,
    Annotations,
    DataKey,
    ImageName,
    IntOrPercent,
    LabelKey,
    Labels,
    LabelValue,
    LocalReference,
    NameInPod,
    Quantity,
    SubdomainName,
    Toleration,
    TopologySpread,
    list_map,
)
from omni_proto.pod_contract import COMPILED_FOLDERS
from omni_proto.stage_config import ConfigModel

RESERVED_PREFIX: Final = "OMNI_"
"""Prefix of the variables that only this project reads."""
RESERVED_VARIABLES: Final = (
    *("HOME", "USER"),
    *("HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "TRANSFORMERS_OFFLINE"),
    *COMPILED_FOLDERS,
    "OTEL_EXPORTER_OTLP_ENDPOINT",
)
"""Variables that the operator sets. Another value would break the pod or evade a setting of the administrator."""
RESERVED_VOLUMES: Final = ("config", "home", "cache", "compile-cache", "tmp", "shm", "models", "hub-token", "tls")
"""Names of the pod's own volumes."""
RESERVED_TREES: Final = (
    *("/etc/omnipipeline", "/etc/omnipipeline-token", "/etc/omnipipeline-tls"),
    *("/home/omni", "/cache", "/compile-cache", "/tmp", "/models", "/dev", "/proc", "/sys"),  # noqa: S108 - paths in the pod
)
"""Directories of the pod's own volumes and of the kernel, which no volume may cover or be inside of."""
RESERVED_PARENTS: Final = ("/", "/etc", "/home")
"""Directories above them."""

VARIABLE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*$"
PREFIX_PATTERN: Final = r"^([-._A-Za-z][-._A-Za-z0-9]*)?$"
PATH_PATTERN: Final = r"^/([-A-Za-z0-9._]+(/[-A-Za-z0-9._]+)*)?$"
RELATIVE_PATTERN: Final = r"^[-A-Za-z0-9._]+(/[-A-Za-z0-9._]+)*$"

VariableName = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=VARIABLE_PATTERN)]
MountPath = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PATH_PATTERN)]
SubPath = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=RELATIVE_PATTERN)]
ShortText = Annotated[str, StringConstraints(max_length=253)]
UserId = Annotated[int, Field(ge=1, le=2**31 - 1)]
FileMode = Annotated[int, Field(ge=0, le=0o777)]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

BY_NAME: Final[dict[str, JsonValue]] = list_map("name")


class KeySelector(ConfigModel):
    """One key of a Secret or ConfigMap in the pipeline's namespace."""

    name: SubdomainName
    """Name of the object."""
    key: DataKey
    """Key in the object."""
    optional: bool = False
    """If true, a missing object or key leaves the variable unset. Otherwise the pod waits for it."""


class ObjectFieldSelector(ConfigModel):
    """A field of the pod."""

    field_path: Literal[
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.hostIP",
        "status.hostIPs",
        "status.podIP",
        "status.podIPs",
    ]
    """Path of the field."""


class EnvVarSource(ConfigModel):
    """Where the value of a variable comes from: exactly one of its fields."""

    secret_key_ref: KeySelector | None = None
    """A key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""
    field_ref: ObjectFieldSelector | None = None
    """A field of the pod."""


class EnvVar(ConfigModel):
    """An environment variable."""

    name: VariableName
    """Name of the variable. Names that the operator sets are refused."""
    value: Annotated[str, StringConstraints(max_length=4096)] | None = None
    """Value; $(NAME) is replaced by another variable's value. Default: empty."""
    value_from: EnvVarSource | None = None
    """Source of the value, instead of value."""


class ObjectReference(ConfigModel):
    """A Secret or ConfigMap in the pipeline's namespace."""

    name: SubdomainName
    """Name of the object."""
    optional: bool = False
    """If true, the object may be missing. Otherwise the pod waits for it."""


class EnvFromSource(ConfigModel):
    """All keys of a Secret or ConfigMap as variables."""

    prefix: Annotated[str, StringConstraints(max_length=64, pattern=PREFIX_PATTERN)] | None = None
    """Text in front of each name."""
    config_map_ref: ObjectReference | None = None
    """The ConfigMap."""
    secret_ref: ObjectReference | None = None
    """The Secret."""


class KeyToPath(ConfigModel):
    """One key as a file."""

    key: DataKey
    """Key in the object."""
    path: SubPath
    """Path of the file in the volume."""
    mode: FileMode | None = None
    """Mode bits of the file, e.g. 292 for 0444."""


_Items = Annotated[list[KeyToPath], Field(max_length=32)]


class ConfigMapVolumeSource(ConfigModel):
    """A ConfigMap's keys as files."""

    name: SubdomainName
    """Name of the ConfigMap."""
    items: _Items = Field(default_factory=list)
    """Keys to show. Default: all of them."""
    default_mode: FileMode | None = None
    """Mode bits of the files. Default: 420, which is 0644."""
    optional: bool = False
    """If true, the ConfigMap may be missing."""


class SecretVolumeSource(ConfigModel):
    """A Secret's keys as files."""

    secret_name: SubdomainName
    """Name of the Secret."""
    items: _Items = Field(default_factory=list)
    """Keys to show. Default: all of them."""
    default_mode: FileMode | None = None
    """Mode bits of the files. Default: 420, which is 0644."""
    optional: bool = False
    """If true, the Secret may be missing."""


class ClaimVolumeSource(ConfigModel):
    """A PersistentVolumeClaim in the pipeline's namespace, read-only."""

    claim_name: SubdomainName
    """Name of the claim."""
    read_only: Literal[True] = True
    """Volumes of a stage are read-only."""


class CsiVolumeSource(ConfigModel):
    """A volume that a CSI driver makes for each pod, e.g. secrets-store.csi.k8s.io; read-only."""

    driver: SubdomainName
    """Name of the driver."""
    read_only: Literal[True] = True
    """Volumes of a stage are read-only."""
    fs_type: Annotated[str, StringConstraints(min_length=1, max_length=63)] | None = None
    """File system. Default: the driver's choice."""
    volume_attributes: Annotated[dict[str, ShortText], Field(max_length=16)] = Field(default_factory=dict)
    """Settings for the driver."""
    node_publish_secret_ref: LocalReference | None = None
    """Secret for the driver."""


class ImageVolumeSource(ConfigModel):
    """The files of an OCI image or artifact; in clusters that support image volumes."""

    reference: ImageName
    """Name of the image."""
    pull_policy: PullPolicy | None = None
    """When the image is pulled. Default: Always for :latest, else IfNotPresent."""


class Volume(ConfigModel):
    """A read-only volume of the pod: a name, and exactly one source."""

    name: NameInPod
    """Name, which volumeMounts refer to. The names of the pod's own volumes are refused."""
    config_map: ConfigMapVolumeSource | None = None
    """A ConfigMap's keys as files."""
    secret: SecretVolumeSource | None = None
    """A Secret's keys as files."""
    persistent_volume_claim: ClaimVolumeSource | None = None
    """A claim."""
    csi: CsiVolumeSource | None = None
    """A volume of a CSI driver."""
    image: ImageVolumeSource | None = None
    """The files of an OCI image or artifact."""


class VolumeMount(ConfigModel):
    """Where the containers see a volume, read-only."""

    name: NameInPod
    """Name of one of volumes."""
    mount_path: MountPath
    """Directory or file in the containers. The directories of the pod's own volumes are refused."""
    sub_path: SubPath | None = None
    """File or directory in the volume to mount. Default: all of it."""
    read_only: Literal[True] = True
    """Volumes of a stage are read-only."""


class PodResourceClaim(ConfigModel):
    """Devices by dynamic resource allocation (DRA): a name, and exactly one of the other fields."""

    name: NameInPod
    """Name, which resources.claims refer to."""
    resource_claim_name: SubdomainName | None = None
    """A ResourceClaim that all pods share."""
    resource_claim_template_name: SubdomainName | None = None
    """A ResourceClaimTemplate, from which each pod gets a claim of its own."""


class PodSecurityContext(ConfigModel):
    """User and groups of the pods. Pods never run as root, and keep seccomp's RuntimeDefault profile."""

    run_as_user: UserId | None = None
    """User id. Default: the platform's choice, e.g. of OpenShift."""
    run_as_group: UserId | None = None
    """Group id. Default: the platform's choice."""
    fs_group: UserId | None = None
    """Group that owns volumes. Default: the platform's choice."""
    fs_group_change_policy: Literal["OnRootMismatch", "Always"] | None = None
    """When files of volumes change their group. Default: OnRootMismatch."""
    supplemental_groups: Annotated[list[UserId], Field(max_length=16)] = Field(default_factory=list)
    """More groups of the processes, e.g. of a shared file system."""


class DisruptionBudget(ConfigModel):
    """How many pods of a stage may be evicted together; one of minAvailable and maxUnavailable."""

    min_available: IntOrPercent | None = None
    """Number or percentage of pods that must stay."""
    max_unavailable: IntOrPercent | None = None
    """Number or percentage of pods that may be missing. 0 blocks the drain of a node until the pods are deleted."""
    unhealthy_pod_eviction_policy: Literal["AlwaysAllow", "IfHealthyBudget"] = "AlwaysAllow"
    """Whether pods that are not ready may always be evicted."""


class CompileCache(ConfigModel):
    """A volume on which pods share compiled code, so that new pods start without compiling."""

    claim_name: SubdomainName
    """PersistentVolumeClaim in the pipeline's namespace. All its writers must be trusted: what is on it is run."""


class PodSettings(ConfigModel):
    """Settings of stage pods. A stage's own value replaces the default completely."""

    image: ImageName | None = None
    """Image of the stage server. Default: the operator's default image."""
    image_pull_policy: PullPolicy | None = None
    """When images are pulled. Default: the operator's setting, else Always for :latest and IfNotPresent for others."""
    image_pull_secrets: Annotated[list[LocalReference], Field(max_length=8, json_schema_extra=BY_NAME)] | None = None
    """Secrets to pull the image with."""
    env: Annotated[list[EnvVar], Field(max_length=64, json_schema_extra=BY_NAME)] | None = None
    """Environment variables of the containers, that of the download included."""
    env_from: Annotated[list[EnvFromSource], Field(max_length=8)] | None = None
    """Secrets and ConfigMaps whose keys become variables. Variables that the operator or env sets take precedence."""
    volumes: Annotated[list[Volume], Field(max_length=16, json_schema_extra=BY_NAME)] | None = None
    """Read-only volumes."""
    volume_mounts: (
        Annotated[list[VolumeMount], Field(max_length=16, json_schema_extra=list_map("mountPath"))] | None
    ) = None
    """Where the containers see the volumes."""
    service_account_name: SubdomainName | None = None
    """ServiceAccount of the pods, for workload identity; it must exist. Its token is not mounted. Default: one of the
    pipeline, without rights."""
    pod_security_context: PodSecurityContext | None = None
    """User and groups of the pods; {} leaves them to the platform, e.g. OpenShift. Default: 10001 for all three."""
    scheduler_name: SubdomainName | None = None
    """Scheduler of the pods, e.g. volcano. Default: default-scheduler."""
    runtime_class_name: SubdomainName | None = None
    """RuntimeClass of the pods, e.g. nvidia."""
    resource_claims: Annotated[list[PodResourceClaim], Field(max_length=8, json_schema_extra=BY_NAME)] | None = None
    """Devices of the pods by dynamic resource allocation, which resources.claims of a stage refers to."""
    node_selector: Annotated[dict[LabelKey, LabelValue], Field(max_length=32)] | None = None
    """Labels that nodes must have."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] | None = None
    """Taints that pods tolerate."""
    affinity: Affinity | None = None
    """Where pods may or should run."""
    priority_class_name: SubdomainName | None = None
    """PriorityClass of the pods."""
    pod_labels: Labels | None = None
    """Additional labels of the pods."""
    pod_annotations: Annotations | None = None
    """Additional annotations of the pods."""
    topology: Annotated[list[TopologySpread], Field(max_length=4, json_schema_extra=list_map("topologyKey"))] | None = (
        None
    )
    """How replicas are spread. Default: over hosts where possible."""
    pod_disruption_budget: DisruptionBudget | None = None
    """How many pods of a stage may be evicted together. Default: one, for stages with two or more replicas."""
    shm_size: Quantity | None = None
    """Size limit of /dev/shm, which counts towards the pod's memory. Default: 2Gi for each GPU, and 2Gi
    without any."""
    compile_cache: CompileCache | None = None
    """Volume on which pods share compiled code. Default: each pod compiles for itself."""
    startup_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Longest time in seconds from the start of the stage server until it is ready. Default: 600 and 1200 more for each
    GPU, but at most 3600."""
    termination_grace_period_seconds: Annotated[int, Field(ge=30, le=90_000)] | None = None
    """Seconds between SIGTERM and SIGKILL. Default and smallest value: the pipeline's timeouts.request plus 30."""
