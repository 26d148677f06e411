"""The pipelines that a gateway serves, and how a request's `model` selects one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omni_gateway.errors import ModelNotFoundError, ModelNotReadyError
from omni_proto.client import ClientTls


@dataclass(frozen=True, slots=True)
class ServedPipeline:
    """One pipeline. If voices or modalities are empty, those in the entry stage's description (GetStage) apply."""

    name: str
    endpoint: str
    """Address of the entry stage, e.g. grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""
    namespace: str = ""
    has_name: bool = True
    """Whether requests may use the plain name. Not if another pipeline has it (omni_proto.model_names)."""
    aliases: tuple[str, ...] = ()
    """Further names that requests may use, e.g. "tts-1". No other pipeline has them."""
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    """Names of voices in other APIs, with the pipeline's voice for each, e.g. {"alloy": "Chelsie"}."""
    voices: tuple[str, ...] = ()
    """Names of the voices, the default first."""
    modalities: tuple[str, ...] = ()
    """The modalities that the pipeline returns: "text", "audio" or both."""
    ready: bool = True
    """Whether each of its stages serves, so that it can be offered to clients."""
    accepts: bool = True
    """Whether requests are sent to it. A request may need only some of the stages, so this may be true if `ready` is
    not."""
    created: int = 0
    """Creation time, in seconds since the epoch."""
    tls: ClientTls | None = None
    """TLS settings, if the defaults of the endpoint's scheme are not enough."""

    @property
    def qualified(self) -> str:
        """NAMESPACE/NAME; the name alone outside a cluster."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def id(self) -> str:
        """The id that /v1/models shows: the name, or NAMESPACE/NAME if another pipeline has the name."""
        return self.name if self.has_name else self.qualified

    @property
    def addresses(self) -> frozenset[str]:
        """Everything that a request may name to reach this pipeline."""
        return frozenset((self.id, self.qualified, *self.aliases))


class Pipelines(Protocol):
    """Source of the served pipelines, which may change at any time."""

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        """Returns the pipelines that are served now. It is called for every request, so it must not block."""
        ...

    def is_synced(self) -> bool:
        """Returns whether the pipelines are known yet; /ready fails until then."""
        ...


class StaticPipelines:
    """Pipelines that were named on the command line."""

    def __init__(self, pipelines: Sequence[ServedPipeline]) -> None:
        self._pipelines = tuple(pipelines)

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        """Returns the pipelines, which never change."""
        return self._pipelines

    def is_synced(self) -> bool:
        """Returns True."""
        return True


def model_ids(pipelines: Sequence[ServedPipeline]) -> dict[str, ServedPipeline]:
    """Returns the pipelines by their ids; see ServedPipeline.id."""
    return {pipeline.id: pipeline for pipeline in pipelines}


def find_pipeline(pipelines: Sequence[ServedPipeline], model: str) -> tuple[str, ServedPipeline]:
    """Returns the id and the pipeline that a request's `model` names.

    model may be NAMESPACE/NAME, or the pipeline's name or an alias, if the pipeline has it. Raises ModelNotFoundError;
    ModelNotReadyError if the pipeline accepts no requests.
    """
    found = next((one for one in pipelines if model in (one.id, one.qualified)), None)
    found = found or next((one for one in pipelines if model in one.aliases), None)
    if found is None:
        raise ModelNotFoundError(f"The model {model[:128]!r} does not exist; /v1/models lists those that do.")
    if not found.accepts:
        raise ModelNotReadyError(f"The model {found.id!r} takes no requests now.")
    return found.id, found
