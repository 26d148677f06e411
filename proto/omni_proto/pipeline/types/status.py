"""The status of an OmniPipeline, which only the operator writes.

Its fields have no defaults: values that the API server filled in would look to the operator like another writer's
change. Only a resource that the operator has not seen yet gets a status, so that no tool takes it for done.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from omni_proto.pipeline.types.kubernetes import list_map
from omni_proto.stage_config import ConfigModel, StageName

MAX_STAGE_MESSAGE: Final = 4096
"""Maximum number of characters of a stage's message."""
MAX_STATUS_STAGES: Final = 32
"""Maximum stage entries: the spec's stages, and removed stages that still complete their requests."""

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Timestamp = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Generation = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Condition(ConfigModel):
    """One aspect of the pipeline's state, in the form that Kubernetes' tools know."""

    type: Annotated[str, StringConstraints(min_length=1, max_length=316, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Ready, Progressing, Degraded, Scaling, ObjectivesMet, RouteAccepted, SpecUnderstood, Reconciling or Stalled."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    observed_generation: Generation | None = None
    """The metadata.generation that the condition is about."""
    last_transition_time: Timestamp
    """When status last changed."""
    reason: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Z][A-Za-z0-9]*$")]
    """Reason for the status, in one word that programs can read."""
    message: Annotated[str, StringConstraints(max_length=32768)]
    """Reason for the status, for people: the stage, the cause and the next step."""


class StageStatus(ConfigModel):
    """State of one stage."""

    name: StageName
    """Name of the stage."""
    replicas: Count | None = None
    """Desired number of pods."""
    ready_replicas: Count | None = None
    """Number of pods that accept requests."""
    revision: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Revision of the pods that serve."""
    desired_replicas: Count | None = None
    """Number of pods that the load needs, before bounds and behavior; only with scaling."""
    scaling: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Why the stage has this number of pods; only with scaling."""
    endpoint: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Address of the stage inside the cluster."""
    model: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Checkpoint of the pods that serve, if it is the stage's own: its uri, and @REVISION if the spec names one."""
    message: Annotated[str, StringConstraints(max_length=MAX_STAGE_MESSAGE)] | None = None
    """What prevents the stage from being ready, and the next step; otherwise empty."""


class NameStatus(ConfigModel):
    """One name that the pipeline claims as a model of the HTTP gateway."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    """The name: the pipeline's own, or an alias."""
    since: Timestamp | None = None
    """When the operator granted it. Without this field, requests with the name do not reach this pipeline."""
    message: Annotated[str, StringConstraints(max_length=1024)] | None = None
    """Why it was not granted: which pipeline had it first."""


class PipelineStatus(ConfigModel):
    """The state of the pipeline, as the operator last saw it."""

    observed_generation: Generation | None = None
    """The metadata.generation that the status is about."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=list_map("type"))] = Field(
        default_factory=list
    )
    """Ready: clients can connect and are served. Progressing: a change is being rolled out. Degraded: something failed.
    Scaling, with scaling only: pods follow the load. ObjectivesMet, with objectives only: what is promised is kept.
    RouteAccepted, with entry.route only: a Gateway or an Ingress controller leads clients to the Service.
    SpecUnderstood, only while it is False: the operator does not know a field or a value of the spec."""
    ready_stages: Annotated[str, StringConstraints(max_length=16)] | None = None
    """Number of ready stages, out of all stages, e.g. 2/3."""
    stages: Annotated[list[StageStatus], Field(max_length=MAX_STATUS_STAGES, json_schema_extra=list_map("name"))] = (
        Field(default_factory=list)
    )
    """The stages, one by one."""
    url: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Where clients inside the cluster connect: grpc://NAME.NAMESPACE.svc:50051, and grpcs:// where the entry has
    TLS."""
    route_url: Annotated[str, StringConstraints(max_length=512)] | None = None
    """Where clients outside the cluster connect once RouteAccepted is True, by the first host name of entry.route:
    grpcs://HOST:443, or the first parentRef's port; grpc:// at port 80 and at an Ingress without a certificate."""
    names: Annotated[list[NameStatus], Field(max_length=32, json_schema_extra=list_map("name"))] = Field(
        default_factory=list
    )
    """Names under which the HTTP gateway may serve the pipeline. A name belongs to the pipeline that had it first."""
