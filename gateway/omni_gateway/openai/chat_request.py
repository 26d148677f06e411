"""The body of POST /v1/chat/completions, with OpenAI's field names.

Unknown fields are refused, and the error names them. OpenAI's fields that this gateway does not support are declared as
well, so that `find_unsupported` can name the field and the remedy.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from omni_gateway.openai.chat_messages import Body, Message
from omni_gateway.openai.surrogates import Utf8Body


class FunctionTool(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """If true, the arguments always fit the schema. Refused if the model's parser cannot guarantee this."""


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionTool


class FunctionName(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """The function that the model must call."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(Body):
    """A JSON Schema that the text must fit."""

    name: str
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """Without effect: the text always fits the schema."""


class TextFormat(Body):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(Body):
    """Any JSON object."""

    type: Literal["json_object"]


class JsonSchemaFormat(Body):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


class StructuredOutputs(Body):
    """The form of the text, with vLLM's names of the fields. Exactly one field must be set."""

    json_schema: Annotated[dict[str, Any] | str | None, Field(alias="json")] = None
    """JSON that fits this schema, which is an object or JSON text."""
    json_object: bool | None = None
    """If true, any JSON object."""
    regex: str | None = None
    """Text that fits this regular expression as a whole."""
    choice: list[str] | None = None
    """One of these texts."""
    grammar: str | None = None
    """Text of this context-free grammar, in EBNF."""


class VoiceId(Body):
    """The id of a voice."""

    id: str


class AudioOutput(Body):
    """The format and voice of the returned audio."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]
    """pcm16: signed 16 bit, little-endian; the built-in models return one channel at 24,000 Hz."""
    voice: str | VoiceId | None = None
    """A voice from /v1/audio/voices, or an alias. Default: the model's first voice."""


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """End the stream with a chunk that contains the usage."""
    include_stages: bool | None = None
    """Send a chunk with `stage` and without choices when a stage accepts the request, and another one, with the stage's
    timings, when the stage has finished."""
    include_obfuscation: bool | None = None
    """Only false: chunks are never padded."""


class ProcessorOptions(Body):
    """Options for reading media."""

    use_audio_in_video: bool | None = None
    """Whether the model also gets the audio of the videos. Set it in every turn of a conversation or in none."""


class ChatRequest(Utf8Body):
    """A chat completion."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=2048)]
    modalities: Annotated[list[Literal["text", "audio"]], Field(min_length=1, max_length=2)] | None = None
    """Default: text."""
    audio: AudioOutput | None = None
    """Required with the modality audio."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Maximum number of text tokens. The length of the speech follows from the text."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Older name of max_completion_tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None

    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    """Functions that the model may call. Only for models whose entry stage sets engineArgs.toolCallParser."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    """If false, only the first call is returned, as with vLLM."""
    response_format: ResponseFormat | None = None
    """Form of the text. Only for requests without the modality audio, and only for models that support it."""

    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """vLLM extension: sample only from this number of most likely tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """vLLM extension: minimum probability of a token, relative to the most likely token."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """vLLM extension: values above 1 discourage tokens of the prompt and the output."""
    min_tokens: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    """vLLM extension: minimum number of text tokens before the text may end."""
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(max_length=128)] | None = None
    """vLLM extension: further token ids that end the text."""
    ignore_eos: bool | None = None
    """vLLM extension: continue after the end-of-sequence token."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """vLLM extension: requests with lower numbers are served earlier."""
    cache_salt: Annotated[str, Field(max_length=128)] | None = None
    """vLLM extension: share cached prefixes only with requests that have the same salt."""

    structured_outputs: StructuredOutputs | None = None
    """vLLM extension: form of the text; see response_format."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM extension: further arguments of the chat template, e.g. {"enable_thinking": false}."""
    mm_processor_kwargs: ProcessorOptions | None = None
    """vLLM extension: how videos are read."""

    user: str | None = None
    """A label; without effect."""
    safety_identifier: str | None = None
    """A label; without effect."""
    metadata: dict[str, str] | None = None
    """Labels; without effect, because nothing is stored."""
    prompt_cache_key: str | None = None
    """A hint; without effect, because the engine finds equal prefixes by itself."""
    store: bool | None = None
    """Only false."""
    n: int | None = None
    """Only 1."""
    logprobs: bool | None = None
    """Only false."""
    top_logprobs: int | None = None
    """Only 0."""
    logit_bias: dict[str, float] | None = None
    """Only empty."""
    service_tier: str | None = None
    """Only auto or default."""
    functions: list[Any] | None = None
    """Not supported: the older form of tools."""
    function_call: Any = None
    """Not supported: the older form of tool_choice."""
    reasoning_effort: str | None = None
    """Not supported."""
    verbosity: str | None = None
    """Not supported."""
    prediction: Any = None
    """Not supported."""
    web_search_options: Any = None
    """Not supported."""
    moderation: Any = None
    """Not supported."""
    prompt_cache_options: Any = None
    """Not supported."""
    prompt_cache_retention: Any = None
    """Not supported."""
