"""The arguments of generate() and run(), said once for the asyncio and the blocking client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from omni_proto.client.media import ChatMessage
from omni_proto.client.request import GenerateOptions, PreparedRequest, Sampling, call_metadata, prepare_request
from omni_proto.client.timing import check_timeout
from omni_proto.client.tools import StructuredOutput, Tool, ToolChoice

if TYPE_CHECKING:
    from typing_extensions import Buffer

Metadata = tuple[tuple[str, str | bytes], ...]


class GenerateArguments(TypedDict, total=False):
    """One request. Exactly one of text, chat, raw_text, token_ids and prompt_embeds is its prompt."""

    text: str | None
    """What the user says: one message, through the model's chat template."""
    chat: ChatMessage | Sequence[ChatMessage] | None
    """A conversation, with images and audio, through the model's chat template."""
    raw_text: str | None
    """A prompt that is sent exactly as it is, without the chat template."""
    token_ids: Sequence[int] | None
    """The ids of a prompt, sent exactly as they are."""
    prompt_embeds: Buffer | None
    """A C-contiguous buffer [rows, hidden size] such as a numpy array: float32 or float16, or uint16 with the bits of
    bfloat16. It needs google-crc32c and a stage that takes embeddings (get_stage().prompt_embeds)."""
    sampling: Sampling | None
    """Sampling parameters by stage and vLLM's name, e.g. {"thinker": {"temperature": 0.7}}."""
    seed: int | None
    """Seed of every stage."""
    modalities: Sequence[str]
    """"text" and "audio"; none means all that the pipeline returns."""
    voice: str
    """Name of the voice; empty means the model's default."""
    encoding: str
    """Encoding of audio: "pcm_s16le" (the default) or "pcm_f32le"."""
    include_token_ids: bool
    """Return the ids of prompt and text."""
    include_codec_tokens: bool
    """Return the codec tokens that the audio is made of."""
    include_timings: bool
    """Return when each stage did what."""
    allow_partial: bool
    """Return what there is, and StageFailed, where a later stage fails."""
    priority: int
    """-1000 to 1000; lower is served earlier."""
    cache_salt: str
    """Cached prefixes are shared only within a salt."""
    reply: str | Sequence[int] | None
    """Text or token ids to speak in place of a reply that the entry stage samples: text as it stands, ids as the
    answer to an earlier request returned them."""
    tools: Sequence[Tool]
    """Functions that the model may call."""
    tool_choice: ToolChoice | None
    """"auto" (the default), "none", "required" or CallTool(NAME)."""
    structured_output: StructuredOutput | None
    """Form that the entry stage's text must have."""
    timeout: float | None
    """Seconds that all attempts together may take; None leaves it to the pipeline."""
    request_id: str | None
    """Sent as x-request-id; in all logs."""
    traceparent: str | None
    """W3C trace context, forwarded to every stage."""
    metadata: Metadata
    """Further metadata of the call."""


_OPTIONS = frozenset(field.name for field in fields(GenerateOptions))


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A request with what its call needs."""

    request: PreparedRequest
    metadata: Metadata
    timeout_s: float | None


def prepare_call(arguments: GenerateArguments) -> PreparedCall:
    """Returns the call that the arguments ask for. Raises ArgumentError; TypeError for an argument that is none."""
    if unknown := arguments.keys() - GenerateArguments.__annotations__.keys():
        raise TypeError(f"unknown arguments: {', '.join(sorted(unknown))}")
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name in _OPTIONS}
    request = prepare_request(
        text=arguments.get("text"),
        chat=arguments.get("chat"),
        raw_text=arguments.get("raw_text"),
        token_ids=arguments.get("token_ids"),
        prompt_embeds=arguments.get("prompt_embeds"),
        options=GenerateOptions(**options),
    )
    metadata = call_metadata(arguments.get("request_id"), arguments.get("traceparent"), arguments.get("metadata", ()))
    return PreparedCall(request, metadata, check_timeout(arguments.get("timeout")))
