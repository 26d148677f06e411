"""The Python client of a pipeline. It needs only grpcio, grpcio-status and protobuf; for prompt embeddings also
google-crc32c.

Sending: prompt.py -> messages.py -> the wire. Receiving: the wire -> events.py -> your loop, or result.py, which
collects the events into one GenerationResult.

    with OmniClient("localhost:50051") as client:
        result = client.run(text="Say hello.", sampling={"thinker": {"max_tokens": 32}})
        print(result.text)
        result.write_wav("hello.wav")
"""

from omni_proto.client.aio import AsyncOmniClient as AsyncOmniClient
from omni_proto.client.blocking import OmniClient as OmniClient
from omni_proto.client.connection import ClientTls as ClientTls
from omni_proto.client.errors import (
    OmniRequestError as OmniRequestError,
    ProtocolError as ProtocolError,
    error_from_rpc as error_from_rpc,
    error_from_status as error_from_status,
)
from omni_proto.client.events import (
    LENGTH as LENGTH,
    PCM_F32LE as PCM_F32LE,
    PCM_S16LE as PCM_S16LE,
    Accepted as Accepted,
    AudioChunk as AudioChunk,
    Event as Event,
    ReasoningDelta as ReasoningDelta,
    SpeechSegment as SpeechSegment,
    SpokenText as SpokenText,
    StageFailed as StageFailed,
    StageFinished as StageFinished,
    StageOutcome as StageOutcome,
    StageTimings as StageTimings,
    Summary as Summary,
    TextDelta as TextDelta,
    TokenDelta as TokenDelta,
    ToolCallDelta as ToolCallDelta,
    TranscriptDelta as TranscriptDelta,
    Usage as Usage,
    event_from_response as event_from_response,
)
from omni_proto.client.prompt import (
    ChatMessage as ChatMessage,
    GenerateArguments as GenerateArguments,
    MediaPart as MediaPart,
    Part as Part,
    assistant as assistant,
    audio_part as audio_part,
    image_part as image_part,
    system as system,
    tool_result as tool_result,
    user as user,
    video_part as video_part,
)
from omni_proto.client.result import (
    GenerationResult as GenerationResult,
    ResultBuilder as ResultBuilder,
    TimedText as TimedText,
    write_wav as write_wav,
)
from omni_proto.client.tools import (
    CallTool as CallTool,
    StructuredOutput as StructuredOutput,
    Tool as Tool,
    ToolCall as ToolCall,
)
from omni_proto.errors import ArgumentError as ArgumentError
