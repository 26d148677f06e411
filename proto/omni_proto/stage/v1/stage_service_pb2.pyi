from omni_proto.stage.v1 import events_pb2 as _events_pb2
from omni_proto.stage.v1 import prompt_pb2 as _prompt_pb2
from omni_proto.stage.v1 import sampling_pb2 as _sampling_pb2
from omni_proto.stage.v1 import tensors_pb2 as _tensors_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GenerateRequest(_message.Message):
    __slots__ = ("start", "media", "end", "tensors", "tensor")
    START_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    start: Start
    media: _prompt_pb2.MediaChunk
    end: End
    tensors: _tensors_pb2.TensorChunks
    tensor: _tensors_pb2.TensorChunk
    def __init__(self, start: _Optional[_Union[Start, _Mapping]] = ..., media: _Optional[_Union[_prompt_pb2.MediaChunk, _Mapping]] = ..., end: _Optional[_Union[End, _Mapping]] = ..., tensors: _Optional[_Union[_tensors_pb2.TensorChunks, _Mapping]] = ..., tensor: _Optional[_Union[_tensors_pb2.TensorChunk, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("text", "chat", "token_ids", "tensors", "prompt_embeds", "sampling", "seed", "modalities", "audio", "include", "allow_partial", "edge_schema_hash", "priority", "cache_salt", "reply", "structured_output", "conversation", "written", "tools", "tool_choice")
    class SamplingEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _sampling_pb2.SamplingParams
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ...) -> None: ...
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MODALITIES_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    EDGE_SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    CONVERSATION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: _prompt_pb2.ChatPrompt
    token_ids: _prompt_pb2.TokenPrompt
    tensors: _tensors_pb2.TensorPrompt
    prompt_embeds: _tensors_pb2.TensorHeader
    sampling: _containers.MessageMap[str, _sampling_pb2.SamplingParams]
    seed: int
    modalities: _containers.RepeatedScalarFieldContainer[_sampling_pb2.Modality]
    audio: _sampling_pb2.AudioOptions
    include: _sampling_pb2.Include
    allow_partial: bool
    edge_schema_hash: str
    priority: int
    cache_salt: str
    reply: _prompt_pb2.GivenReply
    structured_output: _sampling_pb2.StructuredOutput
    conversation: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.ChatMessage]
    written: bool
    tools: _containers.RepeatedCompositeFieldContainer[_prompt_pb2.Tool]
    tool_choice: _prompt_pb2.ToolChoice
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[_prompt_pb2.ChatPrompt, _Mapping]] = ..., token_ids: _Optional[_Union[_prompt_pb2.TokenPrompt, _Mapping]] = ..., tensors: _Optional[_Union[_tensors_pb2.TensorPrompt, _Mapping]] = ..., prompt_embeds: _Optional[_Union[_tensors_pb2.TensorHeader, _Mapping]] = ..., sampling: _Optional[_Mapping[str, _sampling_pb2.SamplingParams]] = ..., seed: _Optional[int] = ..., modalities: _Optional[_Iterable[_Union[_sampling_pb2.Modality, str]]] = ..., audio: _Optional[_Union[_sampling_pb2.AudioOptions, _Mapping]] = ..., include: _Optional[_Union[_sampling_pb2.Include, _Mapping]] = ..., allow_partial: bool = ..., edge_schema_hash: _Optional[str] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ..., reply: _Optional[_Union[_prompt_pb2.GivenReply, _Mapping]] = ..., structured_output: _Optional[_Union[_sampling_pb2.StructuredOutput, _Mapping]] = ..., conversation: _Optional[_Iterable[_Union[_prompt_pb2.ChatMessage, _Mapping]]] = ..., written: bool = ..., tools: _Optional[_Iterable[_Union[_prompt_pb2.Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[_prompt_pb2.ToolChoice, _Mapping]] = ...) -> None: ...

class End(_message.Message):
    __slots__ = ("upstream_finish_reason",)
    UPSTREAM_FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    upstream_finish_reason: _events_pb2.FinishReason
    def __init__(self, upstream_finish_reason: _Optional[_Union[_events_pb2.FinishReason, str]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("stage", "accepted", "text", "tokens", "finished", "failed", "summary", "tool_call", "reasoning", "transcript", "audio")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIPT_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    stage: str
    accepted: _events_pb2.Accepted
    text: _events_pb2.TextDelta
    tokens: _events_pb2.TokenDelta
    finished: _events_pb2.StageFinished
    failed: _events_pb2.StageFailed
    summary: _events_pb2.Summary
    tool_call: _events_pb2.ToolCallDelta
    reasoning: _events_pb2.ReasoningDelta
    transcript: _events_pb2.TextDelta
    audio: _events_pb2.AudioChunk
    def __init__(self, stage: _Optional[str] = ..., accepted: _Optional[_Union[_events_pb2.Accepted, _Mapping]] = ..., text: _Optional[_Union[_events_pb2.TextDelta, _Mapping]] = ..., tokens: _Optional[_Union[_events_pb2.TokenDelta, _Mapping]] = ..., finished: _Optional[_Union[_events_pb2.StageFinished, _Mapping]] = ..., failed: _Optional[_Union[_events_pb2.StageFailed, _Mapping]] = ..., summary: _Optional[_Union[_events_pb2.Summary, _Mapping]] = ..., tool_call: _Optional[_Union[_events_pb2.ToolCallDelta, _Mapping]] = ..., reasoning: _Optional[_Union[_events_pb2.ReasoningDelta, _Mapping]] = ..., transcript: _Optional[_Union[_events_pb2.TextDelta, _Mapping]] = ..., audio: _Optional[_Union[_events_pb2.AudioChunk, _Mapping]] = ...) -> None: ...

class GetStageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStageResponse(_message.Message):
    __slots__ = ("pipeline", "stage", "component", "versions", "config_hash", "input_schema", "input_schema_hash", "output_schema", "output_schema_hash", "outputs", "stages", "limits", "voices", "prompt_embeds", "text", "pipeline_outputs", "random_weights", "answering_stage", "media")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PIPELINE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    COMPONENT_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_HASH_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    INPUT_SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SCHEMA_HASH_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    VOICES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_EMBEDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RANDOM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERING_STAGE_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    pipeline: str
    stage: str
    component: str
    versions: _containers.ScalarMap[str, str]
    config_hash: str
    input_schema: _tensors_pb2.TensorSchema
    input_schema_hash: str
    output_schema: _tensors_pb2.TensorSchema
    output_schema_hash: str
    outputs: _containers.RepeatedScalarFieldContainer[_sampling_pb2.Modality]
    stages: _containers.RepeatedScalarFieldContainer[str]
    limits: StageLimits
    voices: _containers.RepeatedScalarFieldContainer[str]
    prompt_embeds: _tensors_pb2.TensorSpec
    text: TextAbilities
    pipeline_outputs: _containers.RepeatedScalarFieldContainer[_sampling_pb2.Modality]
    random_weights: bool
    answering_stage: str
    media: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, pipeline: _Optional[str] = ..., stage: _Optional[str] = ..., component: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., config_hash: _Optional[str] = ..., input_schema: _Optional[_Union[_tensors_pb2.TensorSchema, _Mapping]] = ..., input_schema_hash: _Optional[str] = ..., output_schema: _Optional[_Union[_tensors_pb2.TensorSchema, _Mapping]] = ..., output_schema_hash: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[_sampling_pb2.Modality, str]]] = ..., stages: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[StageLimits, _Mapping]] = ..., voices: _Optional[_Iterable[str]] = ..., prompt_embeds: _Optional[_Union[_tensors_pb2.TensorSpec, _Mapping]] = ..., text: _Optional[_Union[TextAbilities, _Mapping]] = ..., pipeline_outputs: _Optional[_Iterable[_Union[_sampling_pb2.Modality, str]]] = ..., random_weights: bool = ..., answering_stage: _Optional[str] = ..., media: _Optional[_Iterable[str]] = ...) -> None: ...

class TextAbilities(_message.Message):
    __slots__ = ("given_reply", "structured_output", "tool_call_parser", "reasoning_parser", "transcribes", "times_words")
    GIVEN_REPLY_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_PARSER_FIELD_NUMBER: _ClassVar[int]
    REASONING_PARSER_FIELD_NUMBER: _ClassVar[int]
    TRANSCRIBES_FIELD_NUMBER: _ClassVar[int]
    TIMES_WORDS_FIELD_NUMBER: _ClassVar[int]
    given_reply: bool
    structured_output: bool
    tool_call_parser: str
    reasoning_parser: str
    transcribes: bool
    times_words: bool
    def __init__(self, given_reply: bool = ..., structured_output: bool = ..., tool_call_parser: _Optional[str] = ..., reasoning_parser: _Optional[str] = ..., transcribes: bool = ..., times_words: bool = ...) -> None: ...

class StageLimits(_message.Message):
    __slots__ = ("max_model_len", "max_concurrent_requests", "max_inflight_bytes", "max_media_bytes", "max_message_bytes", "max_media_per_request")
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    MAX_INFLIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEDIA_PER_REQUEST_FIELD_NUMBER: _ClassVar[int]
    max_model_len: int
    max_concurrent_requests: int
    max_inflight_bytes: int
    max_media_bytes: int
    max_message_bytes: int
    max_media_per_request: int
    def __init__(self, max_model_len: _Optional[int] = ..., max_concurrent_requests: _Optional[int] = ..., max_inflight_bytes: _Optional[int] = ..., max_media_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_media_per_request: _Optional[int] = ...) -> None: ...
