"""The OmniPipeline resource, omnipipeline.io/v1alpha1: an any-to-any model as a graph of stages.

The CRD, its reference page, `omnipipe validate` and `omnipipe run` are all based on these classes and on the rules
between their fields in rules/. The status is in status.py: only the operator writes it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from omni_proto.pipeline.types.entry import Entry
from omni_proto.pipeline.types.kubernetes import (
    LIST_SET,
    SERVER_DEFAULT,
    SUBDOMAIN,
    IntOrPercent,
    Resources,
    SecretKeyReference,
    SubdomainName,
    list_map,
)
from omni_proto.pipeline.types.pods import PodSettings
from omni_proto.pipeline.types.scaling import Objectives, Replicas, Scaling
from omni_proto.stage_config import (
    ComponentId,
    ConfigModel,
    EdgeMode,
    EngineArgs,
    ExtraEngineArgs,
    Limits,
    MediaLimits,
    Modality,
    SamplingDefaults,
    StageName,
    SystemPrompt,
)

MODEL_ALIAS_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
_PORT: Final = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
OTLP_PATTERN: Final = rf"^https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?:{_PORT}$"
VOICE_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9])?$"

ModelAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=MODEL_ALIAS_PATTERN)]
Voice = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=VOICE_PATTERN)]


class Aliases(ConfigModel):
    """Further names of the pipeline and of its voices, which clients of the HTTP gateway may use. Changing them affects
    no pods."""

    models: Annotated[list[ModelAlias], Field(max_length=16, json_schema_extra=LIST_SET)] = Field(default_factory=list)
    """Names of the pipeline as a model, e.g. tts-1. A name that several pipelines claim belongs to the first one; see
    status.names."""
    voices: Annotated[dict[Voice, Voice], Field(max_length=64)] = Field(default_factory=dict)
    """Other names for voices of the model, e.g. alloy: Chelsie, so that clients of OpenAI's API work unchanged. A
    voice's own name takes precedence over an alias."""


class Tracing(ConfigModel):
    """Traces of requests."""

    otlp_endpoint: Annotated[str, StringConstraints(max_length=253, pattern=OTLP_PATTERN)] | None = None
    """OpenTelemetry collector that gets the stages' spans over gRPC, reachable from the cluster, e.g.
    http://collector.observability.svc:4317. Default: the operator's collector, if it has one. Local runs use
    OTEL_EXPORTER_OTLP_ENDPOINT instead."""


API_VERSION = "omnipipeline.io/v1alpha1"
KIND = "OmniPipeline"

NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
URI_PATTERN: Final = (
    r"^(hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*"
    r"|(s3|gs|az)://[a-z0-9][a-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._=-]*)*"
    r"|oci://[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)+"
    r"(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127}|@sha256:[0-9a-f]{64})?"
    rf"|pvc://{SUBDOMAIN}(/[A-Za-z0-9._-]+)*"
    r"|file:///[!-~]+)$"
)
DOWNLOAD_PATTERN: Final = "^(hf|s3|gs|az|oci)://"
"""The uris of checkpoints that an init container downloads."""
REVISION_PATTERN: Final = r"^[A-Za-z0-9_-]+([./][A-Za-z0-9_-]+)*$"

ModelUri = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=URI_PATTERN)]


class ModelCache(ConfigModel):
    """Where a downloaded checkpoint is kept."""

    persistent_volume_claim: SubdomainName
    """Claim that holds downloads; must be ReadWriteMany if the pods run on several nodes."""


class Model(ConfigModel):
    """A checkpoint, and how it is downloaded."""

    uri: ModelUri
    """hf://ORG/NAME, or hf://ORG/NAME/FOLDER for a folder of the repository; s3://BUCKET/PATH, gs://BUCKET/PATH or
    az://CONTAINER/PATH; oci://HOST/NAME:TAG, an artifact whose layers are files; pvc://CLAIM/PATH; or file:///PATH (a
    path in the image or in a volume, or on this machine for local runs)."""
    revision: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=REVISION_PATTERN)] | None = None
    """Branch, tag or commit of an hf:// repository. Default: main."""
    token_secret_ref: SecretKeyReference | None = None
    """Secret with what a download needs, which only the container that downloads gets. hf://: a token. s3://: a file of
    AWS credentials. gs://: the JSON key of a service account. az://: the storage account's key or a SAS token.
    oci://: a Docker configuration (key .dockerconfigjson). Default: none; buckets then use the pod's variables and
    identity."""
    cache: ModelCache | None = None
    """Where downloads are kept. Default: a volume of each pod, deleted with the pod."""


class StageInput(ConfigModel):
    """An edge from the stage that this one reads."""

    source: StageName = Field(alias="from")
    """Name of the upstream stage."""
    mode: EdgeMode = EdgeMode.FULL
    """Full waits for all of the upstream's output; Stream starts on the first rows."""


class StageTimeouts(ConfigModel):
    """Time limits of one stage, in seconds."""

    step: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Longest time in seconds between two engine steps with unfinished requests. Default: set by the component."""
    queue: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Longest wait in the engine's queue, in seconds. Default: set by the component; none for autoregressive stages."""
    prepare: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """Seconds for decoding a request's media, and as many for converting them to engine input."""


class Stage(PodSettings):
    """One stage of the graph: one Deployment of pods, or one local process."""

    name: StageName
    """Name: lower-case letters and digits, unique in the pipeline."""
    component: ComponentId
    """Id in the stage server's registry, e.g. qwen2_5_omni/thinker; never a Python path."""
    model: Model | None = None
    """The stage's own checkpoint, which replaces spec.model completely. Default: spec.model."""
    system_prompt: SystemPrompt | None = None
    """System message before the text of another stage, and of chats that have none. Only for generic/llm."""
    replicas: Replicas | None = None
    """Number of pods. Local runs start one process. Default: 1, or what scaling says."""
    scaling: Scaling | None = None
    """Lets the number of pods follow the load, in place of replicas."""
    resources: Resources = Resources()
    """Resources of one pod; limits["nvidia.com/gpu"] is the GPU count. Default: none, the stage runs on the CPU."""
    engine_args: EngineArgs = EngineArgs()
    """Arguments of the engine. What is left out comes from the component, else from vLLM."""
    extra_engine_args: ExtraEngineArgs = Field(default_factory=dict)
    """Further arguments of vLLM by its own names, e.g. attention_backend: FLASH_ATTN, or cpu_offload_gb: 8; true and
    false in quotes. Only where the operator's setting allow-extra-engine-args is on. They are not tested here, and may
    change or go with vLLM's version."""
    inputs: Annotated[list[StageInput], Field(max_length=1, json_schema_extra=list_map("from"))] = Field(
        default_factory=list
    )
    """The upstream stage that this stage reads from; empty for the entry stage."""
    outputs: Annotated[list[Modality], Field(max_length=2, json_schema_extra=LIST_SET)] = Field(default_factory=list)
    """Modalities that the stage returns to the client. Default: none."""
    default_sampling: SamplingDefaults = SamplingDefaults()
    """Sampling parameters for requests that set none. What is left out comes from the component, else from the
    checkpoint's generation_config.json."""
    limits: Limits = Limits()
    """Limits of one pod."""
    timeouts: StageTimeouts = StageTimeouts()
    """Time limits of the stage, in seconds."""


class PipelineTimeouts(ConfigModel):
    """Time limits of the whole pipeline, in seconds."""

    request: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Longest duration of a request, in seconds. If the caller's deadline is earlier, it applies instead."""


class Rollout(ConfigModel):
    """How a change reaches the pods."""

    strategy: Literal["BlueGreen", "Recreate"] = "BlueGreen"
    """How to roll out a change of the contract between stages. BlueGreen: start a complete second set of pods, and
    switch over when all are ready. Recreate: end the old set first; for clusters without capacity for two sets."""
    max_surge: IntOrPercent = 1
    """Maximum number or percentage of pods above replicas while a compatible change is rolled out."""
    max_unavailable: IntOrPercent = 0
    """Maximum number or percentage of pods that may be missing while a compatible change is rolled out."""


def _is_tree(stages: list[Stage]) -> bool:
    names = {stage.name for stage in stages}
    reached = {stage.name for stage in stages if not stage.inputs}
    if len(names) != len(stages) or len(reached) != 1:
        return False
    for _ in stages:
        reached |= {stage.name for stage in stages if stage.inputs and stage.inputs[0].source in reached}
    return reached == names


class PipelineSpec(ConfigModel):
    """The desired state."""

    model: Model | None = None
    """The checkpoint of all stages without a model of their own. Required, unless every stage has one."""
    stages: Annotated[list[Stage], Field(min_length=1, max_length=16, json_schema_extra=list_map("name"))]
    """The stages, in any order. They form a tree whose root is the entry."""
    defaults: PodSettings = PodSettings()
    """Pod settings for stages that do not set their own."""
    entry: Entry = Entry()
    """How clients reach the pipeline."""
    media: MediaLimits = MediaLimits()
    """Limits for the images, audio and videos of a request."""
    aliases: Aliases = Aliases()
    """Further names of the pipeline and of its voices, for clients of the HTTP gateway."""
    tracing: Tracing = Tracing()
    """Traces of requests."""
    timeouts: PipelineTimeouts = Field(PipelineTimeouts(), json_schema_extra=SERVER_DEFAULT)
    """Time limits of the whole pipeline, in seconds."""
    rollout: Rollout = Field(Rollout(), json_schema_extra=SERVER_DEFAULT)
    """How a change reaches the pods."""
    objectives: Objectives | None = None
    """What the pipeline's clients are promised. Default: nothing; each bound is optional."""
    suspend: bool = False
    """If true, the pipeline runs no pods. All its other objects are kept."""

    @model_validator(mode="after")
    def _check_tree(self) -> PipelineSpec:
        # This rule between fields is both here and in rules/: without it, code that walks the graph might not end.
        if not _is_tree(self.stages):
            raise ValueError(
                "stages must be a tree: names used once, one stage without inputs, all others below it; "
                "`omnipipe validate` names the wrong stage"
            )
        return self

    @model_validator(mode="after")
    def _check_models(self) -> PipelineSpec:
        # Also in rules/: without it, a stage might have no checkpoint.
        if self.model is None and (without := [stage.name for stage in self.stages if stage.model is None]):
            raise ValueError(f"model is missing, and stages {', '.join(without)} have no model of their own")
        return self


class Metadata(BaseModel):
    """The parts of the object's metadata that are used; all others are ignored."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=63, pattern=NAME_PATTERN)]
    """Name: lower-case letters, digits and dashes; begins with a letter, because it names Services."""
    namespace: Annotated[str, StringConstraints(max_length=63)] | None = None
    """Namespace; ignored by local runs."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels."""
    annotations: dict[str, str] = Field(default_factory=dict)
    """Annotations."""
    generation: Annotated[int, Field(ge=0, le=2**63 - 1)] = 1
    """Counts the edits of the spec; kept by the API server."""


class OmniPipeline(ConfigModel):
    """An any-to-any model, served as a graph of stages."""

    api_version: Literal["omnipipeline.io/v1alpha1"]
    """Version of the API."""
    kind: Literal["OmniPipeline"]
    """Kind of the object."""
    metadata: Metadata
    """Name, labels and annotations."""
    spec: PipelineSpec
    """The desired state."""

    def stage(self, name: str) -> Stage:
        """Returns the stage of that name. Raises KeyError."""
        for stage in self.spec.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def model_of(self, stage: Stage) -> Model:
        """Returns the checkpoint of a stage of this pipeline: its own, else the pipeline's."""
        model = stage.model or self.spec.model
        if model is None:
            raise ValueError(f"stage {stage.name} has no model")  # PipelineSpec refuses such a pipeline
        return model
