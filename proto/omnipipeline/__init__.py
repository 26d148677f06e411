"""The public API of omnipipeline: the client, and pipeline files.

    from omnipipeline import OmniClient

    with OmniClient("localhost:50051") as client:
        result = client.run(text="Say hello.")

Names are imported when they are first used, so that `import omnipipeline` is fast and a client never loads the code
that reads pipeline files.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from omni_proto.client import (
        Accepted,
        ArgumentError,
        AsyncOmniClient,
        AudioChunk,
        CallTool,
        ChatMessage,
        ClientTls,
        Event,
        GenerateArguments,
        GenerationResult,
        OmniClient,
        OmniRequestError,
        ProtocolError,
        ReasoningDelta,
        SpeechSegment,
        SpokenText,
        StageFailed,
        StageFinished,
        StructuredOutput,
        Summary,
        TextDelta,
        TimedText,
        TokenDelta,
        Tool,
        ToolCall,
        ToolCallDelta,
        TranscriptDelta,
        assistant,
        audio_part,
        image_part,
        system,
        tool_result,
        user,
        video_part,
        write_wav,
    )
    from omni_proto.errors import OmniProtoError
    from omni_proto.pipeline import OmniPipeline, PipelineError, Problem, load_pipeline, parse_pipeline

__all__ = [
    "Accepted",
    "ArgumentError",
    "AsyncOmniClient",
    "AudioChunk",
    "CallTool",
    "ChatMessage",
    "ClientTls",
    "Event",
    "GenerateArguments",
    "GenerationResult",
    "OmniClient",
    "OmniPipeline",
    "OmniProtoError",
    "OmniRequestError",
    "PipelineError",
    "Problem",
    "ProtocolError",
    "ReasoningDelta",
    "SpeechSegment",
    "SpokenText",
    "StageFailed",
    "StageFinished",
    "StructuredOutput",
    "Summary",
    "TextDelta",
    "TimedText",
    "TokenDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TranscriptDelta",
    "__version__",
    "assistant",
    "audio_part",
    "image_part",
    "load_pipeline",
    "parse_pipeline",
    "system",
    "tool_result",
    "user",
    "validate_pipeline",
    "video_part",
    "write_wav",
]

_PIPELINE = {"OmniPipeline", "PipelineError", "Problem", "load_pipeline", "parse_pipeline"}

try:
    __version__ = version("omnipipeline")
except PackageNotFoundError:  # a source tree on the path that nobody installed
    __version__ = "0+unknown"


def validate_pipeline(path: str | Path) -> OmniPipeline:
    """Returns the pipeline in the file at path, checked by every rule of the API server, as `omnipipe validate` does.

    load_pipeline checks only each field, and that the stages form a tree. Raises PipelineError with every problem;
    ImportError, naming the extra to install, if omnipipeline[cli] is not installed.
    """
    try:
        from omni_proto.pipeline.read.offline import load_checked
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; the rules need a CEL library: pip install 'omnipipeline[cli]'") from error
    return load_checked(path)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "omni_proto.pipeline" if name in _PIPELINE else "omni_proto.client"
    return getattr(import_module("omni_proto.errors" if name == "OmniProtoError" else module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
