"""The body of POST /v1/chat/completions, by OpenAI's names.

Unknown fields are refused by name. Fields that OpenAI supports and this gateway does not are declared too, so that
`find_unsupported` can name the value that is refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from omni_gateway.openai.chat_messages import Body, Message


class FunctionTool(Body):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """Arguments always fit the schema. Refused if the model's parser cannot guarantee that."""


class Tool(Body):
    """A tool."""

    type: Literal["function"]
    function: FunctionTool


class FunctionName(Body):
    """A function by its name."""

    name: str


class NamedTool(Body):
    """The one function that the model must call."""

    type: Literal["function"]
    function: FunctionName


class JsonSchema(Body):
    """The form of an answer."""

    name: str
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None
    """The answer always fits, whatever this says."""


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


class VoiceId(Body):
    """A voice by its id."""

    id: str


class AudioOutput(Body):
    """How to speak."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"]
    """pcm16: signed 16 bit, little-endian, one channel at 24,000 Hz for the built-in models."""
    voice: str | VoiceId | None = None
    """A voice of /v1/audio/voices, or an alias of one. Default: the model's first."""


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """End with a chunk that holds the usage."""
    include_stages: bool | None = None
    """Send a chunk without choices, with `stage`, when a stage accepts the request and when it ends, with its times."""
    include_obfuscation: bool | None = None
    """Only false: chunks are not padded."""


class ProcessorOptions(Body):
    """How media are read."""

    use_audio_in_video: bool | None = None
    """The model also hears the audio of the videos. Set it in every turn of a conversation or in none."""


class ChatRequest(Body):
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
    """Maximum tokens of text; the length of the speech follows from the text."""
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Older name of max_completion_tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None

    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    """Functions that the model may call; only models with a parser of tool calls."""
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    """Only true, where there are tools: the model decides how many it calls."""
    response_format: ResponseFormat | None = None
    """Form of the text; only of models that do not speak it."""

    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    """vLLM's: most likely tokens considered."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    """vLLM's: least probability of a token, relative to the most likely one."""
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    """vLLM's: above 1 discourages tokens of the prompt and the output."""
    ignore_eos: bool | None = None
    """vLLM's: continue after the end-of-sequence token."""
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    """vLLM's: lower is served earlier."""
    cache_salt: Annotated[str, Field(max_length=128)] | None = None
    """vLLM's: share cached prefixes only with requests of this salt."""

    mm_processor_kwargs: ProcessorOptions | None = None
    """vLLM's: how videos are read."""

    user: str | None = None
    """A label; without effect."""
    safety_identifier: str | None = None
    """A label; without effect."""
    metadata: dict[str, str] | None = None
    """Labels; without effect, since nothing is stored."""
    prompt_cache_key: str | None = None
    """A hint; without effect: the engine finds equal prefixes itself."""
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
    """Not supported: OpenAI's older tools."""
    function_call: Any = None
    """Not supported: OpenAI's older tool_choice."""
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
