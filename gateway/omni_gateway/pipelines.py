"""The pipelines that a gateway serves now, and which of them a request names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from omni_gateway.errors import ModelNotFoundError, ModelNotReadyError
from omni_proto.client import ClientTls


@dataclass(frozen=True, slots=True)
class ServedPipeline:
    """One pipeline. What is empty here is read from the entry stage (GetStage)."""

    name: str
    endpoint: str
    """Address of the entry stage, e.g. grpc://HOST:PORT, or grpcs://HOST:PORT for TLS."""
    namespace: str = ""
    aliases: tuple[str, ...] = ()
    """Further names that requests may use, e.g. "tts-1"."""
    voice_aliases: Mapping[str, str] = field(default_factory=dict)
    """Voices of the pipeline by names of other APIs, e.g. {"alloy": "Chelsie"}."""
    voices: tuple[str, ...] = ()
    """Voices, the default first."""
    modalities: tuple[str, ...] = ()
    """"text" and "audio", as far as the pipeline returns them."""
    ready: bool = True
    """Whether it takes requests now."""
    created: int = 0
    """Seconds since the epoch."""
    tls: ClientTls | None = None
    """How to connect, where the endpoint's scheme does not say enough."""


class Pipelines(Protocol):
    """Where the pipelines come from. Implementations change what they return at run time."""

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        """Returns the pipelines that are served now. Called for every request, so it must not block."""
        ...

    def is_synced(self) -> bool:
        """Returns whether the list is known yet; /ready fails until then."""
        ...


class StaticPipelines:
    """Pipelines that were named on the command line."""

    def __init__(self, pipelines: Sequence[ServedPipeline]) -> None:
        self._pipelines = tuple(pipelines)

    def list_pipelines(self) -> Sequence[ServedPipeline]:
        """Returns them, always the same."""
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
    """Returns the id and the pipeline of a request's `model`: an id, NAMESPACE/NAME, or an alias that one pipeline has.

    Raises ModelNotFoundError; ModelNotReadyError if the pipeline takes no requests.
    """
    ids = model_ids(pipelines)
    found = {key: one for key, one in ids.items() if model in (key, f"{one.namespace}/{one.name}")}
    found = found or {key: one for key, one in ids.items() if model in one.aliases}
    if not found:
        raise ModelNotFoundError(f"The model {model[:128]!r} does not exist; /v1/models lists those that do.")
    if len(found) > 1:
        raise ModelNotFoundError(f"The model {model[:128]!r} is an alias of {' and '.join(sorted(found))}; name one.")
    ((key, pipeline),) = found.items()
    if not pipeline.ready:
        raise ModelNotReadyError(f"The model {key!r} takes no requests now.")
    return key, pipeline
