"""What a model family implements for each of its stages, and the plain data that goes in and out.

A Component knows one stage of one checkpoint: how its engine is built, how a user's prompt or the upstream stage's
tensors become the engine's input (the processors of the edges), and how the engine's outputs become what the stage
publishes. It runs in the stage server's process; what runs in the engine's process is its model class and worker.

This module imports neither vLLM nor gRPC, so that a component can be described and tested without either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from omni_proto.pipeline.components import ComponentFacts
from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_proto.tensors import TensorSchema
from omni_stage.arrays import Array
from omni_stage.models.edge_stream import EdgeStream, InputFeed
from omni_stage.reply_form import (
    CalledTool,
    GivenReply,
    ReplyTokens,
    StructuredText,
    TextParse,
    ToolCallPiece,
    Tools,
)

if TYPE_CHECKING:
    import numpy as np
    import torch
    from PIL.Image import Image

    from omni_stage.payloads import AdditionalInformationPayload, PromptEmbedsPayload


class FinishReason(Enum):
    """Why a stage stopped; maps one to one to omni_proto.stage.v1.FinishReason."""

    STOP = "stop"
    LENGTH = "length"
    DIFFUSION_DONE = "diffusion_done"
    EMPTY_INPUT = "empty_input"


@dataclass(frozen=True, slots=True)
class TextPart:
    """Text of a chat message."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """A decoded RGB image."""

    image: Image


@dataclass(frozen=True, slots=True)
class AudioPart:
    """A decoded sound: float32 [samples], mono, in [-1, 1]."""

    samples: np.ndarray
    sampling_rate_hz: int


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message of a conversation."""

    role: str
    parts: Sequence[TextPart | ImagePart | AudioPart]
    tool_calls: Sequence[CalledTool] = ()
    """Tools that the assistant called in this message."""
    tool_call_id: str = ""
    """The call that a message of the role "tool" answers."""


@dataclass(frozen=True, slots=True)
class UserPrompt:
    """The input of an entry stage. Exactly one of the first four is set."""

    text: str | None = None
    messages: Sequence[ChatMessage] | None = None
    token_ids: Sequence[int] | None = None
    prompt_embeds: PromptEmbedsPayload | None = None
    """Embeddings [rows, hidden size] in place of tokens. Only for engines with enablePromptEmbeds; `prepare` returns
    them as StageInput.prompt_embeds."""
    reply: GivenReply | None = None
    """The reply, in place of one that is sampled. Only where the component's facts say takes_reply."""
    tools: Tools | None = None
    """Tools that the model may call. Only where the component's facts say takes_tools."""
    structured: StructuredText | None = None
    """The form of the text. Only where the component's facts say structures_text."""


@dataclass(frozen=True, slots=True)
class EdgeInput:
    """The input of every other stage: the upstream stage's tensors, complete, on the CPU."""

    tensors: Mapping[str, Any]
    """By name, each [rows, *row_shape] as the input schema says: of the kind that StageEngine.open_tensors gives."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One request to a stage, validated and with every default applied, whichever way it came."""

    request_id: str
    """Minted by the stage server or the offline engine; unique in the engine."""
    source: UserPrompt | EdgeInput | EdgeStream
    """An EdgeStream if the upstream stage is still writing."""
    sampling: SamplingDefaults
    """Resolved: request > defaultSampling > component. None still means the model's own default."""
    voice: str = ""
    """Name of the voice; empty means the component's default."""
    want_tensors: bool = False
    """Whether a downstream stage reads this request's tensors."""
    priority: int = 0
    """Lower is scheduled earlier, as vLLM has it."""
    cache_salt: str = ""
    """Cached prefixes are shared only among requests of equal salts; empty is a salt like any other."""


@dataclass(frozen=True, slots=True)
class StageInput:
    """What a component hands to the engine: one vLLM prompt and what rides along."""

    prompt: Mapping[str, Any]
    """A vLLM prompt: prompt_token_ids or prompt, and multi_modal_data; empty if prompt_embeds is set."""
    prompt_embeds: PromptEmbedsPayload | None = None
    """In place of token ids."""
    additional_information: AdditionalInformationPayload | None = None
    """Tensors and lists for the model in the engine's process."""
    suppress_token_ids: Sequence[int] = ()
    """Token ids that must not be sampled."""
    stop_token_ids: Sequence[int] = ()
    """Token ids that end the output whatever the request's sampling says; the engine adds them to the request's own."""
    repeat_limit: int | None = None
    """Times in a row that one token may be written; the last one of them ends the output, with the stop reason
    "repetition_detected"."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of vLLM's SamplingParams, which the parser of the text needs."""
    parse: TextParse | None = None
    """Tells reasoning and tool calls from the text. For the component's own emitter."""
    reply: ReplyTokens | None = None
    """The last tokens of the prompt, if they are a given reply: nothing is sampled, and the emitter gets one step, as
    if they had been."""
    finished: FinishReason | None = None
    """Set if there is nothing to run (no text to speak, no sound codes): the engine is not asked, and the request
    ends at once with this reason."""


@dataclass(slots=True)
class EngineStep:
    """One output of the engine for one request, before the component looks at it. Deltas, not totals."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    prompt_token_ids: list[int] | None = None
    """As the engine saw it; set in the first step."""
    tensors: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """What the runner captured, on the CPU. "rows" [n, H]: one row for each new position, prompt included;
    "mrope_positions" [P, 3] int64 and "mrope_delta" [1] int64 in the first step of M-RoPE models; a diffusion
    model's named outputs."""
    finish_reason: FinishReason | None = None
    stop_reason: str = ""
    scheduled_ns: int | None = None
    """time.monotonic_ns() when the scheduler first took the request, if known."""


@dataclass(slots=True)
class StageStep:
    """One output of a stage for one request: what goes to the client and what goes downstream. Deltas."""

    text: str = ""
    reasoning: str = ""
    """What the model wrote before its text, where a parser tells the two apart."""
    tool_calls: Sequence[ToolCallPiece] = ()
    token_ids: list[int] = field(default_factory=list)
    prompt_token_ids: list[int] | None = None
    tensors: Mapping[str, Array] = field(default_factory=dict)
    """Rows by name, as the output schema says, contiguous, on the CPU."""
    complete_tensors: frozenset[str] = frozenset()
    """Tensors whose last row was in this step or before, where that is known before the end."""
    audio: Array | None = None
    """float32 [samples] in [-1, 1] at the sample_rate_hz of the component's facts."""
    finish_reason: FinishReason | None = None
    stop_reason: str = ""
    scheduled_ns: int | None = None


class Emitter(Protocol):
    """Turns one request's engine steps into stage steps. Holds the request's state; made by Component.emitter."""

    def emit(self, step: EngineStep) -> StageStep:
        """Convert one step. The last one has a finish_reason. Raises OmniStageError."""
        ...


class ServedComponent(Protocol):
    """What the stage server reads of a component, whichever engine runs it."""

    facts: ComponentFacts
    """What is true of it whatever checkpoint it serves, as its family's manifest says."""
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
        """Keyword arguments of vLLM's EngineArgs that belong to the component: model, hf_overrides, runner,
        tokenizer, worker and scheduler by id, additional_config. The user's engineArgs are laid over them."""
        ...

    def prepare(self, request: StageRequest) -> StageInput:
        """Turn a request into the engine's input. May take milliseconds (tokenizer, images): run in a thread.

        Raises OmniStageError (InvalidRequestError, InvalidMediaError, InvalidTensorError, PromptTooLongError).
        """
        ...

    def emitter(self, request: StageRequest, prepared: StageInput) -> Emitter:
        """Make the request's emitter. Of streamed input, `prepared` is the first part's."""
        ...

    def warmup_request(self) -> StageRequest:
        """A small request that touches every kernel, run once before the stage is ready."""
        ...


@runtime_checkable
class TakesStreams(Protocol):
    """A Component that can start before its upstream has ended."""

    def open_feed(self, request: StageRequest) -> InputFeed:
        """What turns the rows of a request whose source is an EdgeStream into the engine's input, part by part.

        An autoregressive component's parts together are what `prepare` makes of the same rows at once. Raises
        OmniStageError as `prepare` does.
        """
        ...


@dataclass(frozen=True, slots=True)
class MediaCost:
    """What one image or sound costs the engine."""

    tokens: int
    """Of the prompt, at least."""
    engine_input_bytes: int
    """Memory of the stage server while vLLM's processor makes the engine's input, and of that input, at most. Never
    less for a larger medium of the same form."""


@runtime_checkable
class TakesMedia(Protocol):
    """A Component whose prompts may hold images and sounds."""

    audio_rate_hz: int
    """At which the model hears; sounds are resampled to it."""
    max_aspect_ratio: int
    """Longest side of an image over its shortest, at most."""

    def image_cost(self, width: int, height: int) -> MediaCost:
        """Of an image of so many pixels. Raises InvalidMediaError where the model refuses its form."""
        ...

    def audio_cost(self, samples: int) -> MediaCost:
        """Of a sound of so many samples at audio_rate_hz. Raises InvalidMediaError where it is longer than the model
        hears at once."""
        ...


@runtime_checkable
class KnowsVoices(Protocol):
    """A Component that knows the voices of the stages below it."""

    known_voices: Sequence[str]
    """The default first; empty where no stage below speaks."""


class ComponentFactory(Protocol):
    """What the registry holds under an id: makes the component from a validated configuration.

    Reads config.model.path (configuration, tokenizer, speakers, a few embedding rows), never the whole weights.
    Raises ConfigurationError.
    """

    def __call__(self, config: StageConfig) -> Component: ...
