"""The pipelines that a gateway serves, and how a request's `model` and `voice` select among them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from omni_gateway.errors import InvalidRequestError, ModelNotFoundError, ModelNotReadyError
from omni_gateway.settings import GatewaySettings
from omni_proto.client import ClientTls
from omni_proto.model_names import find_voice

TLS_SCHEME: Final = "grpcs://"


def entry_tls(endpoint: str, settings: GatewaySettings, *, server_name: str = "") -> ClientTls | None:
    """Returns the TLS settings of an entry; None if it has no TLS, or the defaults of grpcs:// are enough.

    server_name: the name that the entry's certificate must have; empty: the endpoint's host.
    """
    tls = ClientTls(
        ca=settings.entry_ca,
        certificate=settings.entry_certificate,
        key=settings.entry_key,
        server_name=server_name,
    )
    return tls if endpoint.startswith(TLS_SCHEME) and tls != ClientTls() else None


def file_times(tls: ClientTls | None) -> tuple[int, ...]:
    """Returns the TLS files' modification times in ns, which change when files are renewed; 0 for a missing file."""
    files = (tls.ca, tls.certificate, tls.key) if tls else ()
    return tuple(_written_at(Path(file)) for file in files if file is not None)


def _written_at(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:  # kubelet is replacing a Secret's files, or the path is wrong, which connecting will report
        return 0


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
    scale_target: str = ""
    """Name of the OmniStage of the entry stage, if the pipeline sleeps while nobody uses it; else empty."""
    asleep: bool = False
    """Whether it has no pods until it is woken."""
    waking: bool = False
    """Whether it slept, and its pods are starting."""
    created: int = 0
    """Creation time, in seconds since the epoch."""
    tls: ClientTls | None = None
    """TLS settings, if the defaults of the endpoint's scheme are not enough."""

    @property
    def is_away(self) -> bool:
        """Whether requests must wait for its pods."""
        return self.asleep or self.waking

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

    async def wake(self, pipeline: ServedPipeline) -> None:
        """Let a pipeline that sleeps start its pods; one that does not is left alone. Raises ModelNotReadyError."""
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

    async def wake(self, pipeline: ServedPipeline) -> None:
        """Does nothing: these pipelines do not sleep."""


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


def pick_voice(wanted: str, voices: Sequence[str], aliases: Mapping[str, str], *, param: str) -> str:
    """Returns the pipeline's name of a voice, given that name or an alias, in any case. An empty name, for the default,
    stays empty.

    A voice goes before an alias of the same name, and an exact name before one in another case.
    Raises InvalidRequestError, which lists the known names.
    """
    if not wanted or wanted in voices:
        return wanted
    meant = _voice_of(wanted if wanted in aliases else None, voices, aliases)
    meant = meant or find_voice(wanted, voices) or _voice_of(find_voice(wanted, sorted(aliases)), voices, aliases)
    if meant is not None:
        return meant
    known = [*voices, *(alias for alias in sorted(aliases) if _voice_of(alias, voices, aliases) is not None)]
    raise InvalidRequestError(
        f"The voice {wanted[:64]!r} is unknown; use {', '.join(known) or 'the default: leave it out'}.", param=param
    )


def list_aliases(aliases: Mapping[str, str], voices: Sequence[str]) -> dict[str, list[str]]:
    """Returns the aliases of each voice in `voices`, sorted."""
    found: dict[str, list[str]] = {}
    for alias in sorted(aliases):
        voice = _voice_of(alias, voices, aliases) if voices else None
        if voice is not None:
            found.setdefault(voice, []).append(alias)
    return found


def _voice_of(alias: str | None, voices: Sequence[str], aliases: Mapping[str, str]) -> str | None:
    """Returns the voice of an alias; None if the pipeline lacks it. If `voices` is empty, they are not known."""
    if alias is None:
        return None
    return find_voice(aliases[alias], voices) if voices else aliases[alias]


def unix_seconds() -> int:
    """Returns the seconds since the epoch, only for timestamps in answers. Deadlines use a monotonic clock."""
    return int(time.time())
