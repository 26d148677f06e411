"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, TypeVar, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_gateway.api.answer import open_answer
from omni_gateway.api.body_route import BodyRoute, check_unsupported
from omni_gateway.api.live import (
    DONE,
    EVENT_STREAM,
    DeferredResponse,
    LiveResponse,
    Template,
    error_event,
    event,
    respond_when_awake,
    wait_awake,
)
from omni_gateway.context import Call, Gateway, call_of, gateway_of, pipelines_of
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, unix_seconds
from omni_gateway.errors import GatewayError, InternalError, InvalidRequestError
from omni_gateway.media.encode import SILENT_RATE_HZ, AnswerEncoder, Base64Pieces, encode_whole
from omni_gateway.media.read import read_media
from omni_gateway.openai.body import Target, read_fields
from omni_gateway.openai.chat_events import NOTES_HEADER, ChatAnswer, read_usage
from omni_gateway.openai.chat_prompt import (
    add_form,
    add_tools,
    answer_sampling,
    build_chat,
    chat_paths,
    count_chars,
    fold_seed,
    list_media,
    recall_heard,
)
from omni_gateway.openai.chat_request import ChatRequest, NamedTool, find_unsupported_in_chat, voice_name
from omni_proto.client import (
    Accepted,
    AudioChunk,
    Event,
    GenerateArguments,
    MediaPart,
    ReasoningDelta,
    ResultBuilder,
    StageFinished,
    Summary,
    TextDelta,
    ToolCallDelta,
    TranscriptDelta,
)

router = APIRouter(tags=["chat"], route_class=BodyRoute)
ROUTE: Final = "/v1/chat/completions"
Answered = TypeVar("Answered", bound=Response)
Respond = Callable[[Gateway, Awaitable[AsyncGenerator[Event, None]], ChatAnswer, EntryFacts, str], Awaitable[Answered]]
"""respond_live or respond_whole."""


@router.post(ROUTE, responses={200: {"content": {"application/json": {}, "text/event-stream": {}}}})
async def create_chat_completion(request: Request, body: ChatRequest) -> Response:
    """Answers a conversation with text, and with speech if the request asks for it."""
    gateway, call = gateway_of(request), call_of(request)
    check_unsupported(gateway, call, find_unsupported_in_chat(body))
    call.rights.check(body)
    call.model, pipeline = find_pipeline(pipelines_of(request), body.model)
    if body.stream and pipeline.is_away:

        async def stream() -> LiveResponse:
            return await (await _begin(gateway, call, pipeline, body, respond_live))

        return respond_when_awake(gateway, call, pipeline, stream)
    await wait_awake(gateway, call, pipeline, request.receive)
    respond = respond_live if body.stream else respond_whole
    return DeferredResponse(await _begin(gateway, call, pipeline, body, respond))


async def _begin(
    gateway: Gateway, call: Call, pipeline: ServedPipeline, body: ChatRequest, respond: Respond[Answered]
) -> Awaitable[Answered]:
    """Checks the request against the pipeline. Returns what makes the response. Raises GatewayError."""
    facts = await gateway.entries.facts(pipeline)
    if facts.transcribes:
        body = body.model_copy(update={"messages": recall_heard(body.messages)})
    call.paths, call.max_model_lens = chat_paths(body), {facts.stage: facts.max_model_len}
    answer = ChatAnswer(
        id=f"chatcmpl-{call.id.removeprefix('req_')}",
        model=call.model,
        created=unix_seconds(),
        audio_expires_at=unix_seconds() if "audio" in (body.modalities or ()) else 0,
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
        include_stages=bool(body.stream_options and body.stream_options.include_stages),
        named_tool=isinstance(body.tool_choice, NamedTool),
        one_call=body.parallel_tool_calls is False,
        paths=call.paths,
    )
    arguments = await read_arguments(gateway, call, pipeline, facts, body)
    audio_format = body.audio.format or "wav" if body.audio and answer.speaks else ""
    # The arguments hold the media. Only the coroutine `opening` keeps them, until the entry stage accepts the request.
    opening = open_answer(gateway, call, ROUTE, pipeline, **arguments)
    return respond(gateway, opening, answer, facts, audio_format)


async def read_arguments(
    gateway: Gateway,
    call: Call,
    pipeline: ServedPipeline,
    facts: EntryFacts,
    body: ChatRequest,
    media: Sequence[MediaPart] | None = None,
) -> GenerateArguments:
    """Returns the arguments of the call to the entry stage. media: that of the messages, if the caller has read it; see
    list_media. Raises GatewayError."""
    chars = count_chars(body.messages)
    if chars > gateway.settings.max_prompt_chars:
        raise InvalidRequestError(
            f"The messages hold {chars} characters, at most {gateway.settings.max_prompt_chars} are allowed.",
            param="messages",
            code="string_above_max_length",
        )
    modalities = check_modalities(body, facts)
    if media is None:
        media = await read_media(list_media(body.messages), gateway.settings.media, call.media_share.add)
    arguments = cast("GenerateArguments", read_fields(body, Target.ARGUMENTS))
    arguments["chat"] = build_chat(body.messages, media)
    arguments["modalities"] = [*modalities, "transcript"] if facts.has_transcript else modalities
    arguments["sampling"] = {facts.answering or facts.stage: answer_sampling(body)}
    if body.mm_processor_kwargs is not None and body.mm_processor_kwargs.use_audio_in_video:
        arguments["use_audio_in_video"] = True
    add_tools(arguments, body, facts)
    add_form(arguments, body, facts)
    if (seed := fold_seed(body.seed)) is not None:
        arguments["seed"] = seed
    if body.audio is not None and "audio" in modalities:
        wanted, aliases = voice_name(body.audio.voice), gateway.voice_aliases(pipeline)
        arguments["voice"] = facts.pick_voice(wanted, aliases, param="audio.voice")
    if body.chat_template_kwargs:
        arguments["template_arguments"] = body.chat_template_kwargs
    return arguments


def check_modalities(body: ChatRequest, facts: EntryFacts) -> list[str]:
    """Returns the requested modalities without duplicates. Adds text if audio is among them. Raises
    InvalidRequestError."""
    modalities = list(dict.fromkeys(body.modalities or ["text"]))
    for wanted in modalities:
        if facts.modalities and wanted not in facts.modalities:
            raise InvalidRequestError(
                f"The model {body.model[:128]!r} returns {' and '.join(facts.modalities)}, not {wanted}.",
                param="modalities",
            )
    if "audio" in modalities and body.audio is None:
        raise InvalidRequestError(
            "The modality audio needs audio: {voice, format}.", param="audio", code="missing_required_parameter"
        )
    if "audio" in modalities and "text" not in modalities:
        # The transcript is part of OpenAI's audio answer.
        modalities.append("text")
    return modalities


async def respond_live(
    gateway: Gateway,
    opening: Awaitable[AsyncGenerator[Event, None]],
    answer: ChatAnswer,
    facts: EntryFacts,
    audio_format: str,
) -> LiveResponse:
    """Returns the streamed answer. opening: see open_answer. Raises GatewayError."""
    return LiveResponse(
        stream_chat(gateway, await opening, answer, facts, audio_format),
        media_type=EVENT_STREAM,
        send_s=gateway.settings.send_seconds,
        comment_s=gateway.settings.keep_alive_seconds,
    )


async def stream_chat(
    gateway: Gateway, events: AsyncGenerator[Event, None], answer: ChatAnswer, facts: EntryFacts, audio_format: str
) -> AsyncGenerator[bytes, None]:
    """Yields the server-sent events of an answer. If the answer fails, the last event is an error instead of [DONE]."""
    writer = AnswerEncoder(audio_format) if audio_format else None
    texts, pieces = Template(answer.text), Base64Pieces()
    async with aclosing(events):
        yield event(answer.first())
        try:
            async for item in events:
                if answer.include_stages and isinstance(item, Accepted | StageFinished):
                    yield event(answer.stage(item))
                if isinstance(item, TextDelta | ToolCallDelta | ReasoningDelta) and item.stage != facts.answering:
                    continue  # a stage before the one that answers
                if isinstance(item, TextDelta) and item.text:
                    yield texts.event(item.text)
                elif isinstance(item, ToolCallDelta):
                    if item.index == 0 or not answer.one_call:
                        yield event(answer.tool_call(item))
                elif isinstance(item, ReasoningDelta):
                    yield event(answer.reasoning(item.text))
                elif isinstance(item, TranscriptDelta) and item.text:
                    yield event(answer.heard(item.text))
                elif isinstance(item, AudioChunk) and writer is not None:
                    if data := pieces.add(await writer.add(item)):
                        yield event(answer.audio(data))
                elif isinstance(item, StageFinished):
                    answer.note(item)
                elif isinstance(item, Summary):
                    end_answer(gateway, answer, item, facts)
                    if writer is not None and (rest := pieces.finish(await writer.finish())):
                        yield event(answer.audio(rest))
                    yield event(answer.last())
                    if answer.include_usage:
                        yield event(answer.usage(read_usage(item, answering=facts.answering)))
        except GatewayError as error:
            yield error_event(error)
            return
        yield DONE


async def respond_whole(
    gateway: Gateway,
    opening: Awaitable[AsyncGenerator[Event, None]],
    answer: ChatAnswer,
    facts: EntryFacts,
    audio_format: str,
) -> Response:
    """Returns the complete answer as one JSON object. opening: see open_answer. Raises GatewayError."""
    builder = ResultBuilder()
    async with aclosing(await opening) as events:
        async for item in events:
            builder.add(item)
            if isinstance(item, StageFinished):
                answer.note(item)
    result = builder.result()
    if result.summary is None:
        raise InternalError("The answer ended without a summary.")
    end_answer(gateway, answer, result.summary, facts)
    audio: bytes | None = None
    if audio_format:
        rate_hz, channels = result.sample_rate_hz or SILENT_RATE_HZ, result.channels or 1
        audio = await asyncio.to_thread(encode_whole, audio_format, result.audio, rate_hz, channels)
    whole = answer.whole(
        result.texts.get(facts.answering, ""),
        audio,
        read_usage(result.summary, answering=facts.answering),
        calls=result.tool_calls.get(facts.answering, ()),
        reasoning=result.reasoning.get(facts.answering, ""),
        heard=result.transcript,
    )
    return JSONResponse(whole, headers={NOTES_HEADER: "; ".join(answer.notes)} if answer.notes else None)


def end_answer(gateway: Gateway, answer: ChatAnswer, summary: Summary, facts: EntryFacts) -> None:
    """Note how the stages ended, and count those that reached their maximum length."""
    # A transcript that was cut leaves the answer to it complete.
    answer.end([stage for stage in summary.cut_stages if not (facts.has_transcript and stage == facts.stage)])
    gateway.metrics.count_cut(ROUTE, summary.cut_stages)
