"""What a model family implements for each of its stages: a Component, and the plain data that it takes and returns.

A Component knows one stage of one checkpoint. It defines how the engine is built, how a user's prompt or the upstream
stage's tensors become the engine's input, and how the engine's outputs become the outputs of the stage. It runs in the
stage server's process. The model class and the worker run in the engine's process.

This package imports neither vLLM nor gRPC, so that a component can be described and tested without them. All families,
built-in or installed, import these names from here.
"""

from omni_stage.exchange import EngineStep, FinishReason
from omni_stage.models.component.prompt import (
    AudioPart,
    ChatMessage,
    ImagePart,
    MediaPart,
    TextPart,
    UserPrompt,
    VideoPart,
)
from omni_stage.models.component.protocol import (
    BoundsRows,
    Component,
    ComponentFactory,
    CutsForPlayback,
    Emitter,
    GathersRows,
    InputFeed,
    KnowsFirstAudio,
    KnowsPace,
    KnowsTokens,
    KnowsVoices,
    MediaCost,
    RunsAgain,
    ServedComponent,
    TakesMedia,
    TakesStreams,
    TakesVideo,
    gather_rows,
    read_part,
)
from omni_stage.models.component.request import (
    EdgeInput,
    EdgeRows,
    EdgeStream,
    EngineInput,
    InputPart,
    SpokenSegment,
    SpokenText,
    StageRequest,
    StageStep,
)

__all__ = [
    "AudioPart",
    "BoundsRows",
    "ChatMessage",
    "Component",
    "ComponentFactory",
    "CutsForPlayback",
    "EdgeInput",
    "EdgeRows",
    "EdgeStream",
    "Emitter",
    "EngineInput",
    "EngineStep",
    "FinishReason",
    "GathersRows",
    "ImagePart",
    "InputFeed",
    "InputPart",
    "KnowsFirstAudio",
    "KnowsPace",
    "KnowsTokens",
    "KnowsVoices",
    "MediaCost",
    "MediaPart",
    "RunsAgain",
    "ServedComponent",
    "SpokenSegment",
    "SpokenText",
    "StageRequest",
    "StageStep",
    "TakesMedia",
    "TakesStreams",
    "TakesVideo",
    "TextPart",
    "UserPrompt",
    "VideoPart",
    "gather_rows",
    "read_part",
]
