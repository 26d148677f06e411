"""The arguments of generate() and run(), for both clients: the only list of a request's options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from omni_proto.client.prompt import ChatMessage
from omni_proto.client.tools import StructuredOutput, Tool, ToolChoice

if TYPE_CHECKING:
    from typing_extensions import Buffer

Metadata = tuple[tuple[str, str | bytes], ...]
Sampling = Mapping[str, Mapping[str, Any]]
"""Sampling parameters by stage and by vLLM's name, e.g. {"thinker": {"temperature": 0.7, "max_tokens": 64}}."""


class GenerateArguments(TypedDict, total=False):
    """One request. Give exactly one prompt: text, chat, raw_text, token_ids or prompt_embeds."""

    text: str | None
    """One message of the user, to which the model's chat template is applied."""
    chat: ChatMessage | Sequence[ChatMessage] | None
    """A conversation, with images, audio and videos, to which the model's chat template is applied."""
    raw_text: str | None
    """A prompt that is used unchanged, without the chat template."""
    token_ids: Sequence[int] | None
    """The token ids of a prompt, used unchanged."""
    prompt_embeds: Buffer | None
    """A C-contiguous buffer [rows, hidden size] such as a numpy array: float32, float16, or uint16 with the bits of
    bfloat16. Needs google-crc32c and a stage that takes embeddings (get_stage().prompt_embeds)."""
    sampling: Sampling | None
    """Sampling parameters by stage and vLLM's name, e.g. {"thinker": {"temperature": 0.7}}."""
    seed: int | None
    """Seed of every stage whose sampling parameters set none."""
    modalities: Sequence[str]
    """Modalities to return: "text", "audio" and "transcript". Empty means all that the pipeline returns."""
    voice: str
    """Name of the voice; empty means the model's default."""
    encoding: str
    """Encoding of audio: "pcm_s16le" (the default) or "pcm_f32le"."""
    include_token_ids: bool
    """Return the token ids of the prompt and the text."""
    include_codec_tokens: bool
    """Return the codec tokens that the audio is made of."""
    include_timings: bool
    """Return the time of every engine output of each stage."""
    allow_partial: bool
    """If a later stage fails, return the results so far and StageFailed instead of an error."""
    priority: int
    """-1000 to 1000; requests with lower numbers are served earlier."""
    cache_salt: str
    """Requests share cached prefixes only with requests of the same salt."""
    reply: str | Sequence[int] | None
    """Text or token ids to speak in place of a reply that the entry stage samples. Text is spoken unchanged; token ids
    are those that an earlier request returned."""
    tools: Sequence[Tool]
    """Functions that the model may call."""
    tool_choice: ToolChoice | None
    """"auto" (the default), "none", "required" or CallTool(NAME)."""
    structured_output: StructuredOutput | None
    """Format that the entry stage's text must have."""
    use_audio_in_video: bool
    """Whether the model also gets the audio tracks of the chat's videos. Set it in every turn of a conversation or in
    none."""
    template_arguments: Mapping[str, Any] | None
    """Further arguments of the chat template, e.g. {"enable_thinking": False}. Only for generic/llm."""
    timeout: float | None
    """Seconds that all attempts together may take; None means the pipeline's default."""
    request_id: str | None
    """Sent as x-request-id; appears in all logs."""
    traceparent: str | None
    """W3C trace context, forwarded to every stage."""
    metadata: Metadata
    """Further metadata of the call."""
