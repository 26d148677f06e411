"""The body of POST /v1/chat/completions, with OpenAI's field names.

Unknown fields are refused, and the error names them. OpenAI's fields that this gateway does not honour are declared as
well, with what becomes of their values (ADR 0036).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from omni_gateway.openai.body import (
    LIST,
    OBJECT,
    TEXT,
    Body,
    CacheHints,
    Sampled,
    Target,
    Text,
    Unsupported,
    UnsupportedValue,
    Without,
    by_kind,
    find_unsupported,
)
from omni_gateway.openai.chat_messages import AssistantMessage, ImagePart, Message, parts_of
from omni_proto.runtime.limits import MAX_CHAT_PARTS


class FunctionTool(CacheHints):
    """A function that the model may call."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON Schema of the arguments."""
    strict: bool | None = None
    """If true, the arguments always fit the schema. Refused if the model's parser cannot guarantee this."""


class Tool(CacheHints):
    """A tool."""

    type: Literal["function"] = "function"
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
    """Without effect: the text always fits the schema. A schema that cannot be enforced is refused."""


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

    json_schema: Annotated[
        Annotated[Text | Annotated[dict[str, Any], OBJECT], by_kind("JSON text or an object")] | None,
        Field(alias="json"),
    ] = None
    """JSON that fits this schema, which is an object or JSON text."""
    json_object: bool | None = None
    """If true, any JSON object."""
    regex: str | None = None
    """Text that fits this regular expression as a whole."""
    choice: Annotated[list[str], Field(fail_fast=True)] | None = None
    """One of these texts."""
    grammar: str | None = None
    """Text of this context-free grammar, in EBNF."""


class VoiceId(Body):
    """The id of a voice."""

    id: str


Voice = Annotated[Text | Annotated[VoiceId, OBJECT], by_kind("a name or an object with id")]


def voice_name(voice: str | VoiceId | None) -> str:
    """Returns the name that a request gives to a voice; empty for the default."""
    return voice.id if isinstance(voice, VoiceId) else voice or ""


Seed = Annotated[int, Field(ge=-(2**63), le=2**64)]


class AudioOutput(Body):
    """The format and voice of the returned audio."""

    format: Literal["wav", "aac", "mp3", "flac", "opus", "pcm16"] | None = None
    """Default: wav. pcm16: signed 16 bit, little-endian; the built-in models return one channel at 24,000 Hz."""
    voice: Voice | None = None
    """A voice from /v1/audio/voices, or an alias. Default: the model's first voice."""


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None
    """End the stream with a chunk that contains the usage."""
    include_stages: bool | None = None
    """Send a chunk with `stage` and without choices when a stage accepts the request, and another one, with the stage's
    timings, when the stage has finished."""
    include_obfuscation: bool | None = None
    """Without effect: chunks are never padded."""
    continuous_usage_stats: bool | None = None
    """vLLM extension; only false: the usage comes at the end."""


class ProcessorOptions(Body):
    """Options for reading media."""

    use_audio_in_video: bool | None = None
    """Whether the model also gets the audio of the videos. Set it in every turn of a conversation or in none."""


class ChatRequest(Sampled, CacheHints):
    """A chat completion."""

    model: str
    messages: Annotated[list[Message], Field(fail_fast=True, min_length=1, max_length=MAX_CHAT_PARTS)]
    modalities: Annotated[list[Literal["text", "audio"]], Field(fail_fast=True, max_length=2)] | None = None
    """Default: text."""
    audio: AudioOutput | None = None
    """Required with the modality audio."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    """Maximum number of text tokens. The length of the speech follows from the text."""
    max_tokens: Annotated[int | None, Field(ge=1, le=2**31 - 1), Target.SAMPLING] = None
    """Older name of max_completion_tokens."""
    temperature: Annotated[float | None, Field(ge=0, le=2), Target.SAMPLING] = None
    seed: Seed | None = None
    """-1, like null, lets each stage choose."""
    stop: Annotated[
        Annotated[
            Text | Annotated[list[str], Field(fail_fast=True, max_length=16), LIST],
            by_kind("a text or a list of texts"),
        ]
        | None,
        Target.SAMPLING,
    ] = None

    tools: Annotated[list[Tool], Field(fail_fast=True, max_length=128)] | None = None
    """Functions that the model may call. Only for models whose entry stage sets engineArgs.toolCallParser."""
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], TEXT] | Annotated[NamedTool, OBJECT],
            by_kind("'none', 'auto', 'required' or an object that names a function"),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    """If false, only the first call is returned, as with vLLM."""
    response_format: ResponseFormat | None = None
    """Form of the text. Only for requests without the modality audio, and only for models that support it."""

    min_tokens: Annotated[int | None, Field(ge=0, le=2**31 - 1), Target.SAMPLING] = None
    """vLLM extension: minimum number of text tokens before the text may end."""
    stop_token_ids: Annotated[
        Annotated[list[Annotated[int, Field(ge=0, le=2**31 - 1)]], Field(fail_fast=True, max_length=128)] | None,
        Target.SAMPLING,
    ] = None
    """vLLM extension: further token ids that end the text."""
    ignore_eos: Annotated[bool | None, Target.SAMPLING] = None
    """vLLM extension: continue after the end-of-sequence token."""
    priority: Annotated[int | None, Field(ge=-1000, le=1000), Target.ARGUMENTS] = None
    """vLLM extension: requests with lower numbers are served earlier."""
    cache_salt: Annotated[str | None, Field(max_length=128), Target.ARGUMENTS] = None
    """vLLM extension: share cached prefixes only with requests that have the same salt."""

    structured_outputs: StructuredOutputs | None = None
    """vLLM extension: form of the text; see response_format."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM extension: further arguments of the chat template, e.g. {"enable_thinking": false}."""
    mm_processor_kwargs: ProcessorOptions | None = None
    """vLLM extension: how videos are read."""

    user: Any = None
    """A label; without effect."""
    safety_identifier: Any = None
    """A label; without effect."""
    request_id: Any = None
    """Labels of vLLM, like session_id; without effect. The header x-request-id sets the id."""
    session_id: Any = None
    metadata: Any = None
    """Labels; without effect, because nothing is stored."""
    prompt_cache_key: Any = None
    """A hint; without effect, because the engine finds equal prefixes by itself."""
    prompt_cache_options: Any = None
    """A hint; without effect."""
    prompt_cache_retention: Any = None
    """A hint; without effect."""
    service_tier: Annotated[str | None, Unsupported(Without.HINT, neutral=["auto", "default"])] = None
    """A hint; without effect, because there is one tier. `priority` sets the order of service."""
    reasoning_effort: Annotated[str | None, Unsupported(Without.HINT)] = None
    """A hint; without effect. Some models read chat_template_kwargs instead, e.g. {"enable_thinking": false}."""
    verbosity: Annotated[str | None, Unsupported(Without.HINT, neutral=["medium"])] = None
    """A hint; without effect."""
    prediction: Annotated[Any, Unsupported(Without.HINT)] = None
    """A hint; without effect, because it makes an answer only faster."""
    stream_interval: Annotated[int | None, Unsupported(Without.HINT, neutral=[1])] = None
    """vLLM extension, a hint; without effect, because chunks hold whatever is ready when the client reads."""
    store: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    """Only false."""
    logprobs: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    """Only false."""
    top_logprobs: Annotated[int | None, Unsupported(Without.MEANING, neutral=[0])] = None
    """Only 0."""
    logit_bias: Annotated[dict[str, float] | None, Unsupported(Without.MEANING, neutral=[{}])] = None
    """Only empty."""
    functions: Annotated[
        Annotated[list[Any], Field(fail_fast=True)] | None, Unsupported(Without.MEANING, neutral=[[]])
    ] = None
    """Not supported: the older form of tools."""
    function_call: Annotated[Any, Unsupported(Without.MEANING, neutral=["none", "auto"])] = None
    """Not supported: the older form of tool_choice."""
    web_search_options: Annotated[Any, Unsupported(Without.MEANING)] = None
    """Not supported."""
    include_reasoning: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[True])] = None
    """vLLM extension; only true: the answer contains the reasoning, if the model's is recognized."""
    skip_special_tokens: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[True])] = None
    """vLLM extension; only its default, like the next ones."""
    spaces_between_special_tokens: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[True])] = None
    add_generation_prompt: Annotated[bool | None, Unsupported(Without.NEED, neutral=[True])] = None
    continue_final_message: Annotated[bool | None, Unsupported(Without.NEED, neutral=[False])] = None
    add_special_tokens: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    echo: Annotated[bool | None, Unsupported(Without.MEANING, neutral=[False])] = None
    bad_words: Annotated[Any, Unsupported(Without.MEANING, neutral=[[]])] = None
    best_of: Annotated[int | None, Unsupported(Without.MEANING, neutral=[1])] = None
    moderation: Annotated[Any, Unsupported(Without.NEED)] = None
    """Not supported."""


def find_unsupported_in_chat(request: ChatRequest) -> Iterator[UnsupportedValue]:
    """Yields the values that are not honoured."""
    yield from find_unsupported(request)
    for index, message in enumerate(request.messages):
        path = f"messages[{index}]"
        if isinstance(message, AssistantMessage):
            yield from _unsupported_in_answer(path, message)
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            image = part.image_url if isinstance(part, ImagePart) else ""
            if not isinstance(image, str) and image.detail not in (None, "auto"):
                where = f"{path}.content[{place}].image_url.detail"
                yield UnsupportedValue(where, "the model decides by the image's size", Without.HINT)
    if request.stream_options is not None:
        if not request.stream:
            yield UnsupportedValue("stream_options", "stream_options needs stream: true", Without.HINT)
        if request.stream_options.continuous_usage_stats:
            path = "stream_options.continuous_usage_stats"
            yield UnsupportedValue(path, f"{path} is not supported; the usage comes at the end", Without.MEANING)


def _unsupported_in_answer(path: str, message: AssistantMessage) -> Iterator[UnsupportedValue]:
    if message.function_call is not None:
        why = "function_call is not supported here; send tool_calls"
        yield UnsupportedValue(f"{path}.function_call", why, Without.NEED)
    elif not parts_of(message) and message.audio is not None:
        why = "audio.id is not kept here; send the transcript as content"
        yield UnsupportedValue(f"{path}.audio", why, Without.NEED)
    elif not parts_of(message) and not message.tool_calls:
        yield UnsupportedValue(f"{path}.content", "an assistant message needs content", Without.NEED)
