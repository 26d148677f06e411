"""The methods that a component has, and those that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.engine_step import EngineStep
from omni_stage.models.component.request import StageInput, StageRequest
from omni_stage.models.component.step import StageStep
from omni_stage.models.edge_stream import InputFeed


class Emitter(Protocol):
    """Turns one request's engine steps into stage steps. Holds the request's state; made by Component.emitter."""

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step. The last one has a finish_reason. Raises OmniStageError."""
        ...


class ServedComponent(Protocol):
    """What the stage server reads of a component, for any engine."""

    facts: ComponentFacts
    """The component's facts from its family's manifest, which are the same for every checkpoint."""
    input_schema: TensorSchema | None
    """What it reads from upstream; None for entry stages."""
    output_schema: TensorSchema | None
    """What it publishes; None if nothing can read it."""
    default_sampling: SamplingDefaults
    voices: Sequence[str]
    """Names of voices, the default first; empty if it does not speak."""


class Component(ServedComponent, Protocol):
    """One stage of a model family, bound to one checkpoint and one StageConfig. Made by a registry factory."""

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns the keyword arguments of vLLM's EngineArgs that the component sets.

        These are model, hf_overrides, runner, tokenizer, worker and scheduler by id, additional_config. The user's
        engineArgs override them.
        """
        ...

    def prepare(self, request: StageRequest) -> StageInput:
        """Turn a request into the engine's input. May take milliseconds (tokenizer, images): run in a thread.

        Raises OmniStageError (InvalidRequestError, InvalidMediaError, InvalidTensorError, PromptTooLongError).
        """
        ...

    def emitter(self, request: StageRequest, prepared: StageInput) -> Emitter:
        """Make the request's emitter. For streamed input, `prepared` is the first part's."""
        ...

    def warmup_request(self) -> StageRequest:
        """Returns a small request that runs every kernel; it runs once, before the stage is ready."""
        ...


@runtime_checkable
class TakesStreams(Protocol):
    """A Component that can start before its upstream has ended."""

    def open_feed(self, request: StageRequest) -> InputFeed:
        """Returns the feed that turns the rows of a request into the engine's input, part by part.

        The request's source is an EdgeStream. The parts of an autoregressive component add up to what `prepare` makes
        of the same rows at once. Raises OmniStageError as `prepare` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class MediaCost:
    """What one image, video or audio clip costs the engine."""

    tokens: int
    """Fewest tokens of the prompt."""
    engine_input_bytes: int
    """Most bytes of the stage server's memory for the engine's input and for vLLM's processor while it makes that
    input. A larger medium of the same form never costs less."""


@runtime_checkable
class TakesMedia(Protocol):
    """A Component whose prompts may hold images and audio."""

    audio_rate_hz: int
    """Sample rate of the model's audio input; audio is resampled to it."""
    max_aspect_ratio: int
    """Largest ratio of an image's longest side to its shortest."""

    def image_cost(self, width: int, height: int) -> MediaCost:
        """Returns the cost of an image of this size. Raises InvalidMediaError if the model refuses its form."""
        ...

    def audio_cost(self, samples: int) -> MediaCost:
        """Returns the cost of audio of so many samples at audio_rate_hz.

        Raises InvalidMediaError if it is longer than the model reads at once.
        """
        ...


@runtime_checkable
class TakesVideo(TakesMedia, Protocol):
    """A Component whose prompts may hold videos as well."""

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Returns the width and height that the frames of a video are scaled to.

        Raises InvalidMediaError if the model refuses its form.
        """
        ...

    def video_cost(self, width: int, height: int, frames: int) -> MediaCost:
        """Returns the cost of so many frames of this size, without audio."""
        ...


@runtime_checkable
class KnowsVoices(Protocol):
    """A Component that knows the voices of the stages downstream."""

    known_voices: Sequence[str]
    """The default first; empty if no stage downstream speaks."""


class ComponentFactory(Protocol):
    """What the registry holds under an id: makes the component from a validated configuration.

    Reads config.model.path (configuration, tokenizer, speakers, a few embedding rows), never the whole weights.
    Raises ConfigurationError.
    """

    def __call__(self, config: StageConfig) -> Component: ...
