"""The Python client of a pipeline. It needs only grpcio, grpcio-status and protobuf; for prompt embeddings also
google-crc32c.

Sending: arguments.py -> messages.py -> the wire. Receiving: the wire -> events.py -> your loop, or result.py, which
collects the events into one GenerationResult.

    with OmniClient("localhost:50051") as client:
        result = client.run(text="Say hello.", sampling={"thinker": {"max_tokens": 32}})
        print(result.text)
        result.write_wav("hello.wav")
"""

from __future__ import annotations

from omni_proto.client.aio import AsyncOmniClient
from omni_proto.client.arguments import GenerateArguments
from omni_proto.client.blocking import OmniClient
from omni_proto.client.connection import ClientTls
from omni_proto.client.errors import OmniRequestError, ProtocolError, error_from_rpc, error_from_status
from omni_proto.client.events import (
    LENGTH,
    PCM_F32LE,
    PCM_S16LE,
    Accepted,
    AudioChunk,
    Event,
    ReasoningDelta,
    StageFailed,
    StageFinished,
    StageOutcome,
    StageTimings,
    Summary,
    TextDelta,
    TokenDelta,
    ToolCallDelta,
    Usage,
    event_from_response,
)
from omni_proto.client.prompt import (
    ChatMessage,
    MediaPart,
    Part,
    assistant,
    audio_part,
    image_part,
    system,
    tool_result,
    user,
    video_part,
)
from omni_proto.client.result import GenerationResult, ResultBuilder, write_wav
from omni_proto.client.tools import CallTool, StructuredOutput, Tool, ToolCall
from omni_proto.errors import ArgumentError

__all__ = [
    "LENGTH",
    "PCM_F32LE",
    "PCM_S16LE",
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
    "MediaPart",
    "OmniClient",
    "OmniRequestError",
    "Part",
    "ProtocolError",
    "ReasoningDelta",
    "ResultBuilder",
    "StageFailed",
    "StageFinished",
    "StageOutcome",
    "StageTimings",
    "StructuredOutput",
    "Summary",
    "TextDelta",
    "TokenDelta",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
    "assistant",
    "audio_part",
    "error_from_rpc",
    "error_from_status",
    "event_from_response",
    "image_part",
    "system",
    "tool_result",
    "user",
    "video_part",
    "write_wav",
]
