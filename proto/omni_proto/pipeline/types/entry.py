"""How clients reach a pipeline, under which names, and where their requests are traced."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from omni_proto.pipeline.types.kubernetes import LIST_SET, SubdomainName
from omni_proto.stage_config import ClientCertificates, ConfigModel

MODEL_ALIAS_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"
_PORT: Final = "([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
OTLP_PATTERN: Final = rf"^https?://[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?:{_PORT}$"
VOICE_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9 ._-]*[A-Za-z0-9])?$"

ModelAlias = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=MODEL_ALIAS_PATTERN)]
Voice = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=VOICE_PATTERN)]


class EntryTls(ConfigModel):
    """The certificate of the entry stage. Clients then connect over TLS 1.2 or newer."""

    secret_name: SubdomainName
    """Secret in the pipeline's namespace with tls.crt and tls.key (and ca.crt), as cert-manager writes it. A renewed
    certificate is served without a restart."""
    client_certificates: ClientCertificates = ClientCertificates.IGNORED
    """Required: clients must present a certificate signed by the ca.crt of the same Secret."""


class Entry(ConfigModel):
    """How clients reach the pipeline."""

    tls: EntryTls | None = None
    """TLS between clients and the entry stage. Default: plaintext, without authentication."""


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
