"""The pipelines that a gateway serves, and how a request's `model` selects one."""

from __future__ import annotations

from collections import Counter
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
    aliases: tuple[str, ...] = ()
    """Further names that requests may use, e.g. "tts-1"."""
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
    """Returns the pipelines by the id that /v1/models shows: the name, or NAMESPACE/NAME where names clash."""
    counts = Counter(pipeline.name for pipeline in pipelines)
    return {
        pipeline.name if counts[pipeline.name] == 1 else f"{pipeline.namespace}/{pipeline.name}": pipeline
        for pipeline in pipelines
    }


def find_pipeline(pipelines: Sequence[ServedPipeline], model: str) -> tuple[str, ServedPipeline]:
    """Returns the id and the pipeline that a request's `model` names.

    model may be an id, NAMESPACE/NAME, or an alias that only one pipeline has. Raises ModelNotFoundError;
    ModelNotReadyError if the pipeline accepts no requests.
    """
    ids = model_ids(pipelines)
    found = {key: one for key, one in ids.items() if model in (key, f"{one.namespace}/{one.name}")}
    found = found or {key: one for key, one in ids.items() if model in one.aliases}
    if not found:
        raise ModelNotFoundError(f"The model {model[:128]!r} does not exist; /v1/models lists those that do.")
    if len(found) > 1:
        raise ModelNotFoundError(f"The model {model[:128]!r} is an alias of {' and '.join(sorted(found))}; name one.")
    ((key, pipeline),) = found.items()
    if not pipeline.accepts:
        raise ModelNotReadyError(f"The model {key!r} takes no requests now.")
    return key, pipeline
