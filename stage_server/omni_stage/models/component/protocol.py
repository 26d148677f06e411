"""The methods that every component has, and those that are optional."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.exchange import EngineStep
from omni_stage.models.component.request import (
    EdgeRows,
    EdgeStream,
    EngineInput,
    InputPart,
    StageRequest,
    StageStep,
)


class Emitter(Protocol):
    """Turns one request's engine steps into stage steps. Holds the request's state; made by Component.emitter."""

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step. The last one has a finish_reason. Raises OmniStageError."""
        ...


@runtime_checkable
class RunsAgain(Protocol):
    """An Emitter whose request takes several runs of the engine, one after another. Only for complete input.

    `emit` leaves the finish_reason out of the last step of every run but the last.
    """

    def next_input(self) -> EngineInput:
        """Returns the input of the next run, once a run has ended without a finish_reason. Called in a thread, as
        Component.prepare is. Raises OmniStageError.
        """
        ...


class ServedComponent(Protocol):
    """The attributes of a component that the stage server reads, whichever engine runs it."""

    facts: ComponentFacts
    """The component's facts from its family's manifest, which are the same for every checkpoint."""
    input_schema: TensorSchema | None
    """The tensors that the component reads from the upstream stage; None for entry stages."""
    output_schema: TensorSchema | None
    """The tensors that the component publishes; None if it publishes none."""
    default_sampling: SamplingDefaults
    voices: Sequence[str]
    """Names of voices, the default first; empty if the component does not speak."""


class Component(ServedComponent, Protocol):
    """One stage of a model family, bound to one checkpoint and one StageConfig. Made by a ComponentFactory."""

    def engine_kwargs(self) -> dict[str, Any]:
        """Returns the keyword arguments of vLLM's EngineArgs that the component sets.

        Examples are model, dtype, hf_overrides, runner and additional_config. The user's engineArgs override them.
        """
        ...

    def prepare(self, request: StageRequest) -> EngineInput:
        """Returns the engine's input for a request. May take milliseconds (tokenizer, images): call it in a thread.

        Raises OmniStageError (InvalidRequestError, InvalidMediaError, InvalidTensorError, PromptTooLongError).
        """
        ...

    def emitter(self, request: StageRequest, prepared: EngineInput) -> Emitter:
        """Returns the request's emitter. For streamed input, `prepared` is the input of the first part."""
        ...

    def warmup_request(self) -> StageRequest:
        """Returns a small request that uses every kernel. It runs once, before the stage is ready."""
        ...


class InputFeed(Protocol):
    """Turns one request's rows into parts; made by TakesStreams.open_feed. Holds the request's state; never waits."""

    def add(self, rows: EdgeRows) -> None:
        """Append rows. Raises OmniStageError."""
        ...

    def next_part(self) -> InputPart | None:
        """Returns the next part of the added rows; None while there are too few for the engine to use.

        After the end of the rows it returns a part at every call, up to the last part. Raises OmniStageError.
        """
        ...


@runtime_checkable
class CutsForPlayback(InputFeed, Protocol):
    """An InputFeed of one-shot parts that can be made shorter, so that a listener does not wait for a long one."""

    def next_part_within(self, seconds: float, *, cut: bool) -> InputPart | None:
        """Returns what `next_part` would, or less of it, if it has more than `seconds` of audio.

        `cut`: whether a part that is not complete yet may be cut, because the listener is about to wait.
        """
        ...


async def read_part(stream: EdgeStream, feed: InputFeed, *, in_thread: bool = False) -> InputPart:
    """Returns the next part as soon as its rows have arrived. `in_thread`: compute the part in a thread.

    Raises OmniStageError.
    """
    while True:
        part = await asyncio.to_thread(feed.next_part) if in_thread else feed.next_part()
        if part is not None:
            return part
        feed.add(await stream.read())


@runtime_checkable
class GathersRows(Protocol):
    """An InputFeed whose output does not depend on the sizes of its parts, so that a part may wait for more rows."""

    @property
    def wants_more(self) -> bool:
        """Whether the next part should wait for more rows as long as nobody needs its output."""
        ...


async def gather_rows(stream: EdgeStream, feed: InputFeed, seconds: float) -> None:
    """Add rows to a feed that wants more of them, for at most `seconds`. Raises OmniStageError."""
    if seconds <= 0 or not isinstance(feed, GathersRows):
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while feed.wants_more:
                # A read that is cancelled takes nothing out of the stream.
                feed.add(await stream.read())


@runtime_checkable
class TakesStreams(Protocol):
    """A Component that can start before its upstream stage has ended."""

    def open_feed(self, request: StageRequest) -> InputFeed:
        """Returns the feed that turns the rows of a request into the engine's input, part by part.

        The request's source is an EdgeStream. For an autoregressive component, the parts together equal the input that
        `prepare` makes from all rows. Raises OmniStageError as `prepare` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class MediaCost:
    """What one image, video or audio clip costs the engine."""

    tokens: int
    """Minimum number of prompt tokens that the medium takes; 0 if an encoder reads it, to whose output the decoder
    attends, so that it takes no position of the engine's sequences."""
    engine_input_bytes: int
    """Upper bound of the stage server's memory, in bytes, for the engine's input and for vLLM's processor while it
    makes that input. A larger medium of the same kind never costs less."""


@runtime_checkable
class TakesMedia(Protocol):
    """A Component whose prompts may hold images and audio."""

    audio_rate_hz: int
    """Sample rate of the model's audio input; audio is resampled to it."""
    max_aspect_ratio: int
    """Largest ratio of an image's longest side to its shortest."""

    @property
    def max_audio_samples(self) -> int:
        """Samples of the longest audio that the model reads in one clip."""
        ...

    def image_cost(self, width: int, height: int) -> MediaCost:
        """Returns the cost of an image of this size. Raises InvalidMediaError if the model refuses its aspect ratio."""
        ...

    def audio_cost(self, samples: int) -> MediaCost:
        """Returns the cost of audio with this many samples at audio_rate_hz.

        Raises InvalidMediaError if the audio is longer than the model reads in one clip.
        """
        ...


@runtime_checkable
class TakesVideo(TakesMedia, Protocol):
    """A Component whose prompts may hold videos as well."""

    def frame_size(self, width: int, height: int, frames: int) -> tuple[int, int]:
        """Returns the width and height to which the frames of a video are scaled.

        Raises InvalidMediaError if the model refuses its aspect ratio.
        """
        ...

    def video_cost(self, width: int, height: int, frames: int) -> MediaCost:
        """Returns the cost of a video with this many frames of this size, without its audio."""
        ...


@runtime_checkable
class KnowsVoices(Protocol):
    """A Component that knows the voices of the stages downstream."""

    known_voices: Sequence[str]
    """Names of voices, the default first; empty if no stage downstream speaks."""


@runtime_checkable
class KnowsTokens(Protocol):
    """A Component that knows how much text a token can stand for."""

    @property
    def chars_per_token(self) -> int | None:
        """Most characters of a text that one token stands for; None if that is not bounded."""
        ...


@runtime_checkable
class BoundsRows(Protocol):
    """A Component that knows more about the number of rows that it publishes than its facts' `rows_per_position`."""

    def max_rows(self, input_rows: int, max_tokens: int) -> int:
        """Returns the maximum number of rows of any tensor that the component publishes for one request.

        `input_rows`: maximum number of tokens of the prompt, or of rows of the input edge; `max_tokens`: maximum number
        of tokens that the engine generates. The downstream stages reserve bytes for all these rows.
        """
        ...


@runtime_checkable
class KnowsFirstAudio(Protocol):
    """A Component whose rows the stages downstream turn into audio."""

    first_audio_steps: int
    """Number of steps of a request after which the stages downstream have all rows for its first audio."""


@runtime_checkable
class KnowsPace(Protocol):
    """A Component whose rows each stand for the same time of audio."""

    row_plays_s: float | None
    """Seconds of audio per row; None if no stage downstream speaks."""


class ComponentFactory(Protocol):
    """The function that the registry holds for an id. It makes the component from a validated configuration.

    It reads files of config.model.path (configuration, tokenizer, speakers, a few embedding rows), but never all
    weights. Raises ConfigurationError.
    """

    def __call__(self, config: StageConfig) -> Component: ...
