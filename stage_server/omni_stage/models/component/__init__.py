"""What a model family implements for each of its stages: a Component, and the plain data that it takes and returns.

A Component knows one stage of one checkpoint. It defines how the engine is built, how a user's prompt or the upstream
stage's tensors become the engine's input, and how the engine's outputs become the outputs of the stage. It runs in the
stage server's process. The model class and the worker run in the engine's process.

prompt.py    the parts of a user's prompt
request.py   a request to a stage, and the engine's input that `prepare` makes from it
step.py      the outputs of a stage
protocol.py  the methods that every component has, and those that are optional

This package imports neither vLLM nor gRPC, so that a component can be described and tested without them. All families,
built-in or installed, import these names from here.
"""

from omni_stage.exchange.engine_step import EngineStep, FinishReason
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
    Component,
    ComponentFactory,
    Emitter,
    KnowsFirstAudio,
    KnowsTokens,
    KnowsVoices,
    MediaCost,
    ServedComponent,
    TakesMedia,
    TakesStreams,
    TakesVideo,
)
from omni_stage.models.component.request import EdgeInput, EngineInput, StageRequest
from omni_stage.models.component.step import StageStep

__all__ = [
    "AudioPart",
    "ChatMessage",
    "Component",
    "ComponentFactory",
    "EdgeInput",
    "Emitter",
    "EngineInput",
    "EngineStep",
    "FinishReason",
    "ImagePart",
    "KnowsFirstAudio",
    "KnowsTokens",
    "KnowsVoices",
    "MediaCost",
    "MediaPart",
    "ServedComponent",
    "StageRequest",
    "StageStep",
    "TakesMedia",
    "TakesStreams",
    "TakesVideo",
    "TextPart",
    "UserPrompt",
    "VideoPart",
]
