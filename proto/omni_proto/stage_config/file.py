"""The file that configures a stage server."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Final, Literal

import yaml
from pydantic import Field, StringConstraints, ValidationError, model_validator

from omni_proto.pod_contract import GRPC_PORT, HEALTH_PORT, METRICS_PORT
from omni_proto.stage_config.extra_args import ExtraEngineArgs
from omni_proto.stage_config.settings import (
    ClientCertificates,
    ComponentId,
    ConfigModel,
    EdgeMode,
    EngineArgs,
    Limits,
    MediaLimits,
    Modality,
    ParserName,
    SamplingDefaults,
    StageName,
    SystemPrompt,
)

SCHEMA_VERSION: Final = 1


class StageConfigError(ValueError):
    """The stage file is missing, not YAML, or not a StageConfig. The message names each wrong field."""


class Timeouts(ConfigModel):
    """Times in seconds."""

    request: Annotated[float, Field(gt=0, le=86_400)] = 300.0
    """Maximum duration of a request. If the caller's deadline is earlier, it applies instead."""
    step: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Longest time between two steps of an engine with unfinished requests. Default: set by the component."""
    queue: Annotated[float, Field(gt=0, le=86_400)] | None = None
    """Longest wait in the engine's queue. Default: set by the component; none for autoregressive stages."""
    prepare: Annotated[float, Field(gt=0, le=3600)] = 20.0
    """Time limit for decoding a request's media, and separately for converting them to engine input."""
    drain_notice: Annotated[float, Field(ge=0, le=3600)] = 5.0
    """After SIGTERM, the time between reporting NOT_SERVING and refusing new requests."""


class ServerTls(ConfigModel):
    """TLS of the gRPC port: files in cert-manager's shape, which may be replaced while the server runs."""

    directory: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """Directory of tls.crt and tls.key, and of ca.crt if clients must present a certificate."""
    client_certificates: ClientCertificates = ClientCertificates.IGNORED
    """Required: clients must present a certificate that ca.crt signed."""
    source: Annotated[str, StringConstraints(max_length=512)] = ""
    """Where the files come from; for messages."""


class Listen(ConfigModel):
    """Where the stage server listens."""

    host: Annotated[str, StringConstraints(max_length=253)] = "[::]"
    """Address; "[::]" is dual-stack."""
    grpc_port: Annotated[int, Field(ge=0, le=65535)] = GRPC_PORT
    """Port of StageService; 0 takes a free one."""
    health_port: Annotated[int, Field(ge=0, le=65535)] = HEALTH_PORT
    """Port that serves only grpc.health.v1, always in plaintext."""
    metrics_port: Annotated[int, Field(ge=0, le=65535)] = METRICS_PORT
    """Port of /metrics."""
    tls: ServerTls | None = None
    """TLS of the gRPC port. Default: plaintext. Health and metrics are always plaintext."""


class InputEdge(ConfigModel):
    """The stage that this stage reads."""

    source: StageName
    """Name of the upstream stage."""
    mode: EdgeMode = EdgeMode.FULL
    """Full waits for all rows; Stream starts on the first."""


class DownstreamStage(ConfigModel):
    """A stage that reads this one, together with all stages below it."""

    stage: StageName
    """Name of the downstream stage."""
    target: Annotated[str, StringConstraints(min_length=1, max_length=512)]
    """gRPC target, e.g. dns:///NAME-talker-HASH.NAMESPACE.svc.cluster.local.:50051"""
    mode: EdgeMode = EdgeMode.FULL
    """The edge's mode, as the downstream stage declares it."""
    component: ComponentId
    """Component of the downstream stage; it selects the processor of the edge."""
    stages: Annotated[list[StageName], Field(min_length=1, max_length=16)]
    """Names of the downstream stage and of all below it."""
    outputs: Annotated[list[Modality], Field(max_length=4)] = Field(default_factory=list)
    """Modalities that the downstream stage or any below it returns."""
    other_model: bool = False
    """Whether the downstream stage or any below it serves another checkpoint than this stage."""


class ModelSource(ConfigModel):
    """Where the weights are."""

    path: Annotated[str, StringConstraints(min_length=1, max_length=4096)]
    """Directory of the checkpoint, as the stage server sees it."""
    uri: Annotated[str, StringConstraints(max_length=512)] = ""
    """URI that the checkpoint came from; for logs and GetStage."""
    revision: Annotated[str, StringConstraints(max_length=128)] = ""
    """Requested revision."""


class StageConfig(ConfigModel):
    """The configuration of one stage server."""

    schema_version: Literal[1] = SCHEMA_VERSION
    """Version of this schema."""
    pipeline: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Name of the pipeline."""
    stage: StageName
    """Name of the stage."""
    component: ComponentId
    """Id of the component in the stage server's registry."""
    model: ModelSource
    """The checkpoint."""
    system_prompt: SystemPrompt | None = None
    """System message before the text of another stage, and of chats that have none."""
    input: InputEdge | None = None
    """The upstream stage that this stage reads from; empty for the entry stage."""
    outputs: Annotated[list[Modality], Field(max_length=4)] = Field(default_factory=list)
    """Modalities that this stage returns to the client."""
    downstream: Annotated[list[DownstreamStage], Field(max_length=15)] = Field(default_factory=list)
    """Stages that read this one."""
    answering_stage: StageName | None = None
    """The stage whose text is the answer, if it is below this one."""
    answering_tool_call_parser: ParserName | None = None
    """The parser of that stage that finds tool calls."""
    engine_args: EngineArgs = EngineArgs()
    """Arguments of the engine."""
    extra_engine_args: ExtraEngineArgs = Field(default_factory=dict)
    """Further arguments of vLLM."""
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of GPUs of the stage, from its resources; 1 for a stage on the CPU."""
    default_sampling: SamplingDefaults = SamplingDefaults()
    """Sampling parameters for requests that set none."""
    limits: Limits = Limits()
    """Limits of the pod."""
    media: MediaLimits = MediaLimits()
    """Limits for images, audio and videos; only the entry stage receives media."""
    timeouts: Timeouts = Timeouts()
    """Timeouts, in seconds."""
    listen: Listen = Listen()
    """Address and ports."""

    def passes_on(self, transcribes: bool) -> bool:
        """Returns whether the conversation, its tools and a given reply are for the stage below that answers.

        `transcribes`: a fact of this stage's component. Such a stage writes down what it hears; any other one reads
        the conversation itself if it is the entry.
        """
        return self.answering_stage is not None and (transcribes or self.input is not None)

    @model_validator(mode="after")
    def _check_graph(self) -> StageConfig:
        below = [name for edge in self.downstream for name in edge.stages]
        names = [self.stage, *below]
        if self.input is not None and self.listen.tls is not None:
            raise ValueError("listen.tls: only the entry stage serves over TLS; stages call one another in plaintext")
        if len(set(names)) != len(names):
            raise ValueError(f"downstream: a stage is named twice in {names}; every stage of the out-tree has one path")
        if self.answering_stage is not None and self.answering_stage not in below:
            raise ValueError(f"answeringStage must be one of the stages below, {below}, got {self.answering_stage!r}")
        for edge in self.downstream:
            if edge.stage not in edge.stages:
                raise ValueError(f"downstream.{edge.stage}.stages must hold {edge.stage!r} itself, got {edge.stages}")
        return self

    @property
    def stages(self) -> list[str]:
        """This stage and all below it, in the order of the graph."""
        return [self.stage, *(name for edge in self.downstream for name in edge.stages)]

    @property
    def is_model_shared(self) -> bool:
        """Whether all stages below serve this stage's checkpoint, so that it shows for example their voices."""
        return not any(edge.other_model for edge in self.downstream)

    def config_hash(self) -> str:
        """Returns the sha256 of the configuration without addresses, so equal stages of different revisions or hosts
        have the same hash."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"listen"})
        for edge in data.get("downstream", []):
            edge.pop("target", None)
        return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_yaml(self) -> str:
        """Returns the text of the stage file: non-default fields only, keys in schema order."""
        data = {
            "schemaVersion": self.schema_version,
            **self.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        }
        return yaml.dump(data, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""libyaml's dumper if PyYAML has it, as in its wheels. It is ten times as fast as the Python dumper, which took half of
the time for building a pipeline's children. Both write the same text, except for control characters and emoji."""


def parse_stage_config(text: str) -> StageConfig:
    """Parse and validate a stage file.

    Raises StageConfigError, which names every wrong field with its reason.
    """
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise StageConfigError(f"stage file is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise StageConfigError(f"stage file must be a mapping, got {type(data).__name__}")
    if "schemaVersion" not in data:
        raise StageConfigError(f"schemaVersion is missing; this stage server reads schemaVersion {SCHEMA_VERSION}")
    try:
        return StageConfig.model_validate(data)
    except ValidationError as error:
        lines = [
            f"{'.'.join(str(p) for p in item['loc']) or 'stage file'}: {item['msg']}"
            for item in error.errors(include_input=False)
        ]
        raise StageConfigError("; ".join(lines)) from error


def load_stage_config(path: Path) -> StageConfig:
    """Read and validate the stage file at path. Raises StageConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise StageConfigError(f"cannot read the stage file {path}: {error.strerror}") from error
    return parse_stage_config(text)
