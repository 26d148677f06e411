"""What a model family implements for each of its stages, and the plain data that goes in and out.

A Component knows one stage of one checkpoint: how its engine is built, how a user's prompt or the upstream stage's
tensors become the engine's input (the processors of the edges), and how the engine's outputs become what the stage
publishes. It runs in the stage server's process; what runs in the engine's process is its model class and worker.

prompt.py    what a user's prompt is made of
request.py   a request to a stage, and the engine's input that `prepare` makes of it
step.py      the outputs of a stage
protocol.py  the methods that a component has, and those that it may have

This package imports neither vLLM nor gRPC, so that a component can be described and tested without either. Families,
built-in or installed, import everything from here.
"""

from omni_stage.engine_step import EngineStep, FinishReason
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
    KnowsVoices,
    MediaCost,
    ServedComponent,
    TakesMedia,
    TakesStreams,
    TakesVideo,
)
from omni_stage.models.component.request import EdgeInput, StageInput, StageRequest
from omni_stage.models.component.step import StageStep

__all__ = [
    "AudioPart",
    "ChatMessage",
    "Component",
    "ComponentFactory",
    "EdgeInput",
    "Emitter",
    "EngineStep",
    "FinishReason",
    "ImagePart",
    "KnowsVoices",
    "MediaCost",
    "MediaPart",
    "ServedComponent",
    "StageInput",
    "StageRequest",
    "StageStep",
    "TakesMedia",
    "TakesStreams",
    "TakesVideo",
    "TextPart",
    "UserPrompt",
    "VideoPart",
]
