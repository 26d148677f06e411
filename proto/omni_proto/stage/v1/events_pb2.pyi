from google.rpc import status_pb2 as _status_pb2
from omni_proto.stage.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_DIFFUSION_DONE: _ClassVar[FinishReason]
    FINISH_REASON_EMPTY_INPUT: _ClassVar[FinishReason]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_DIFFUSION_DONE: FinishReason
FINISH_REASON_EMPTY_INPUT: FinishReason

class Accepted(_message.Message):
    __slots__ = ("request_id", "accepted_unix_ns", "max_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    accepted_unix_ns: int
    max_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., accepted_unix_ns: _Optional[int] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("text", "segment")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    text: str
    segment: SpeechSegment
    def __init__(self, text: _Optional[str] = ..., segment: _Optional[_Union[SpeechSegment, _Mapping]] = ...) -> None: ...

class SpeechSegment(_message.Message):
    __slots__ = ("start_ms", "end_ms")
    START_MS_FIELD_NUMBER: _ClassVar[int]
    END_MS_FIELD_NUMBER: _ClassVar[int]
    start_ms: int
    end_ms: int
    def __init__(self, start_ms: _Optional[int] = ..., end_ms: _Optional[int] = ...) -> None: ...

class TokenDelta(_message.Message):
    __slots__ = ("ids", "prompt_ids")
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., prompt_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class ReasoningDelta(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class AudioChunk(_message.Message):
    __slots__ = ("encoding", "sample_rate_hz", "channels", "first_sample", "last", "spoken", "data")
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SPOKEN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    encoding: _sampling_pb2.AudioEncoding
    sample_rate_hz: int
    channels: int
    first_sample: int
    last: bool
    spoken: _containers.RepeatedCompositeFieldContainer[SpokenText]
    data: bytes
    def __init__(self, encoding: _Optional[_Union[_sampling_pb2.AudioEncoding, str]] = ..., sample_rate_hz: _Optional[int] = ..., channels: _Optional[int] = ..., first_sample: _Optional[int] = ..., last: bool = ..., spoken: _Optional[_Iterable[_Union[SpokenText, _Mapping]]] = ..., data: _Optional[bytes] = ...) -> None: ...

class SpokenText(_message.Message):
    __slots__ = ("end_sample", "characters")
    END_SAMPLE_FIELD_NUMBER: _ClassVar[int]
    CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    end_sample: int
    characters: int
    def __init__(self, end_sample: _Optional[int] = ..., characters: _Optional[int] = ...) -> None: ...

class StageFinished(_message.Message):
    __slots__ = ("finish_reason", "stop_reason", "usage", "timings", "notes", "language")
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    LANGUAGE_FIELD_NUMBER: _ClassVar[int]
    finish_reason: FinishReason
    stop_reason: str
    usage: Usage
    timings: StageTimings
    notes: _containers.RepeatedScalarFieldContainer[str]
    language: str
    def __init__(self, finish_reason: _Optional[_Union[FinishReason, str]] = ..., stop_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timings: _Optional[_Union[StageTimings, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., language: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "audio_samples", "tensor_bytes_sent", "codec_tokens", "cached_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    CODEC_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    audio_samples: int
    tensor_bytes_sent: int
    codec_tokens: int
    cached_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., audio_samples: _Optional[int] = ..., tensor_bytes_sent: _Optional[int] = ..., codec_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ...) -> None: ...

class StageTimings(_message.Message):
    __slots__ = ("accepted_unix_ns", "input_complete_ns", "engine_submitted_ns", "engine_scheduled_ns", "first_output_ns", "last_output_ns", "transfer_start_ns", "transfer_end_ns", "first_audio_ns", "finished_ns", "step_ns")
    ACCEPTED_UNIX_NS_FIELD_NUMBER: _ClassVar[int]
    INPUT_COMPLETE_NS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SUBMITTED_NS_FIELD_NUMBER: _ClassVar[int]
    ENGINE_SCHEDULED_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OUTPUT_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_OUTPUT_NS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_START_NS_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_END_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AUDIO_NS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_NS_FIELD_NUMBER: _ClassVar[int]
    STEP_NS_FIELD_NUMBER: _ClassVar[int]
    accepted_unix_ns: int
    input_complete_ns: int
    engine_submitted_ns: int
    engine_scheduled_ns: int
    first_output_ns: int
    last_output_ns: int
    transfer_start_ns: int
    transfer_end_ns: int
    first_audio_ns: int
    finished_ns: int
    step_ns: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, accepted_unix_ns: _Optional[int] = ..., input_complete_ns: _Optional[int] = ..., engine_submitted_ns: _Optional[int] = ..., engine_scheduled_ns: _Optional[int] = ..., first_output_ns: _Optional[int] = ..., last_output_ns: _Optional[int] = ..., transfer_start_ns: _Optional[int] = ..., transfer_end_ns: _Optional[int] = ..., first_audio_ns: _Optional[int] = ..., finished_ns: _Optional[int] = ..., step_ns: _Optional[_Iterable[int]] = ...) -> None: ...

class StageFailed(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("request_id", "stages", "total_ns")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    stages: _containers.RepeatedCompositeFieldContainer[StageOutcome]
    total_ns: int
    def __init__(self, request_id: _Optional[str] = ..., stages: _Optional[_Iterable[_Union[StageOutcome, _Mapping]]] = ..., total_ns: _Optional[int] = ...) -> None: ...

class StageOutcome(_message.Message):
    __slots__ = ("stage", "finish_reason", "usage", "code")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    stage: str
    finish_reason: FinishReason
    usage: Usage
    code: int
    def __init__(self, stage: _Optional[str] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., code: _Optional[int] = ...) -> None: ...
