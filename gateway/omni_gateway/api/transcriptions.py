"""POST /v1/audio/transcriptions and /v1/audio/translations: write down the words that are spoken in an audio file."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from omni_gateway.api.answer import open_answer
from omni_gateway.api.body_route import INLINE_BYTES, check_unsupported, validate_body
from omni_gateway.api.live import (
    EVENT_STREAM,
    DeferredResponse,
    LiveResponse,
    error_event,
    event,
    respond_when_awake,
    wait_awake,
)
from omni_gateway.client_paths import TRANSCRIPT
from omni_gateway.context import Call, Gateway, call_of, gateway_of, pipelines_of
from omni_gateway.entries.connections import EntryFacts
from omni_gateway.entries.pipelines import ServedPipeline, find_pipeline, unix_seconds
from omni_gateway.errors import (
    GatewayError,
    InternalError,
    InvalidMediaError,
    InvalidRequestError,
    TooLargeError,
    TranscriptCutError,
    UnsupportedError,
)
from omni_gateway.openai.audio_requests import FILES, TranscriptionRequest, TranslationRequest
from omni_gateway.openai.body import Target, find_unsupported, read_fields
from omni_gateway.openai.chat_events import NOTES_HEADER, read_usage
from omni_gateway.openai.chat_prompt import fold_seed
from omni_gateway.openai.form_body import FORM_TYPE, is_form, parse_form
from omni_gateway.openai.transcripts import (
    PLAIN,
    Trimmer,
    begin_chunks,
    build_instruction,
    build_options,
    close_segments,
    describe_segments,
    write_srt,
    write_vtt,
)
from omni_gateway.settings import UnsupportedFields
from omni_proto.client import (
    ArgumentError,
    ChatMessage,
    Event,
    GenerateArguments,
    ResultBuilder,
    StageFinished,
    Summary,
    TextDelta,
    TranscriptDelta,
    audio_part,
)
from omni_proto.media_headers import describe_wrong, read_header
from omni_proto.media_headers.audio import AudioHeader
from omni_proto.media_headers.container import MediaHeaderError

router = APIRouter(tags=["transcription"])
TRANSCRIPTIONS: Final = "/v1/audio/transcriptions"
TRANSLATIONS: Final = "/v1/audio/translations"
_TIMED: Final = ("srt", "vtt")
_Form = TypeVar("_Form", TranscriptionRequest, TranslationRequest)


def _describe(model: type[TranscriptionRequest | TranslationRequest]) -> dict[str, Any]:
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": {FORM_TYPE: {"schema": model.model_json_schema()}}}
        },
        "responses": {200: {"content": {kind: {} for kind in ("application/json", "text/plain", "text/event-stream")}}},
        "response_class": Response,
    }


@router.post(TRANSCRIPTIONS, **_describe(TranscriptionRequest))
async def create_transcription(request: Request) -> Response:
    """Writes down the words that are spoken, in their own language."""
    return await respond(request, await read_form(request, TranscriptionRequest), TRANSCRIPTIONS, "transcribe")


@router.post(TRANSLATIONS, **_describe(TranslationRequest))
async def create_translation(request: Request) -> Response:
    """Writes down in English the words that are spoken in another language."""
    return await respond(request, await read_form(request, TranslationRequest), TRANSLATIONS, "translate")


@dataclass(frozen=True, slots=True)
class Task:
    """What a route asks for, beside the fields that both routes have."""

    route: str
    name: str
    language: str = ""
    stream: bool = False
    counts: bool = False
    """Whether the stream ends with vLLM's chunk of the usage."""


async def read_form(request: Request, model: type[_Form]) -> _Form:
    """Returns the values of a request's form, and frees the body. Raises InvalidRequestError, RequestValidationError.

    The guard has read the body, with limits on its size and time, and passes it on in one piece.
    """
    gateway, call = gateway_of(request), call_of(request)
    body = cast("bytearray", (await request.receive())["body"])
    kind = request.headers.get("content-type")
    if not is_form(kind):
        raise InvalidRequestError(f"The body must be a form, sent as {FORM_TYPE}.", code="invalid_form")
    ignored = call.ignored if gateway.settings.unsupported_fields is UnsupportedFields.IGNORE else None
    try:
        call.media_share.add(len(body))  # at most as many bytes are copied
        if len(body) <= INLINE_BYTES:
            values = parse_form(body, kind, FILES)
        else:
            async with gateway.reading[1]:
                values = await asyncio.to_thread(parse_form, body, kind, FILES)
    finally:
        body.clear()
        call.body_share.release()
    return cast("_Form", validate_body(values, model, ignored))


async def respond(request: Request, form: TranscriptionRequest | TranslationRequest, route: str, name: str) -> Response:
    """Checks the request and returns its answer. Raises GatewayError."""
    task = Task(route, name, form.language or "", bool(form.stream), bool(form.stream_include_usage))
    gateway, call = gateway_of(request), call_of(request)
    check_unsupported(gateway, call, find_unsupported(form))
    call.model, pipeline = find_pipeline(pipelines_of(request), form.model)
    if task.stream and pipeline.is_away:

        async def stream() -> LiveResponse:
            return await respond_live(gateway, call, *await _open(gateway, call, pipeline, form, task), task)

        return respond_when_awake(gateway, call, pipeline, stream)
    await wait_awake(gateway, call, pipeline, request.receive)
    opening, facts = await _open(gateway, call, pipeline, form, task)
    if task.stream:
        return DeferredResponse(respond_live(gateway, call, opening, facts, task))
    seconds = measure_seconds(form.file)
    # From here on only `opening` holds the file, until the entry stage accepts the request.
    return DeferredResponse(respond_whole(gateway, call, opening, _without_file(form), task, facts, seconds))


async def _open(
    gateway: Gateway,
    call: Call,
    pipeline: ServedPipeline,
    form: TranscriptionRequest | TranslationRequest,
    task: Task,
) -> tuple[Awaitable[AsyncGenerator[Event, None]], EntryFacts]:
    """Checks the request against the pipeline. Returns its call (open_answer) and the facts. Raises GatewayError."""
    facts = await gateway.entries.facts(pipeline)
    call.paths, call.max_model_lens = TRANSCRIPT, {facts.stage: facts.max_model_len}
    check_abilities(form, task, facts, call.model)
    if len(form.file) > gateway.settings.media.max_bytes:
        raise TooLargeError(
            f"file holds more than {gateway.settings.media.max_bytes} bytes, the limit for one file.", param="file"
        )
    return open_answer(gateway, call, task.route, pipeline, **build_arguments(form, task, facts)), facts


def _without_file(form: TranscriptionRequest | TranslationRequest) -> TranscriptionRequest | TranslationRequest:
    return form.model_copy(update={"file": b""})


def check_abilities(form: TranscriptionRequest | TranslationRequest, task: Task, facts: EntryFacts, model: str) -> None:
    """Raises UnsupportedError if the model does not hear, or if its transcript cannot have the form."""
    if not facts.hears or not (facts.has_transcript or facts.answering == facts.stage):
        raise UnsupportedError(
            f"The model {model!r} does not write down what it hears.", param="model", code="invalid_value"
        )
    wanted = form.response_format or "json"
    if task.stream and wanted not in ("json", "text"):
        raise UnsupportedError(f"stream: a stream has no {wanted}; use json or text.", param="stream")
    if wanted in _TIMED and not facts.times_words:
        raise UnsupportedError(
            f"The model {model!r} does not state when words were spoken, so there is no {wanted}; use json or text.",
            param="response_format",
        )
    if isinstance(form, TranscriptionRequest) and form.timestamp_granularities:
        if wanted != "verbose_json":
            raise InvalidRequestError(
                "timestamp_granularities needs response_format verbose_json.", param="timestamp_granularities"
            )
        if not facts.times_words:
            raise UnsupportedError(
                f"The model {model!r} does not state when words were spoken.", param="timestamp_granularities"
            )


def build_arguments(
    form: TranscriptionRequest | TranslationRequest, task: Task, facts: EntryFacts
) -> GenerateArguments:
    """Returns the arguments of the call to the entry stage. Raises InvalidMediaError."""
    try:
        audio = audio_part(form.file)
    except ArgumentError as error:
        raise InvalidMediaError(f"file {describe_wrong(form.file, 'audio')}.", param="file") from error
    language, prompt = task.language, form.prompt or ""
    timed = facts.times_words and form.response_format in (*_TIMED, "verbose_json")
    arguments: GenerateArguments = {
        "modalities": ["transcript" if facts.has_transcript else "text"],
        "sampling": {facts.stage: {"temperature": 0.0, **read_fields(form, Target.SAMPLING)}},
    }
    if facts.transcribes:
        arguments["chat"] = ChatMessage("user", (audio,))
        arguments["template_arguments"] = build_options(task.name, language, prompt, timestamps=timed)
    else:
        arguments["chat"] = ChatMessage("user", (audio, build_instruction(task.name, language, prompt)))
    if (seed := fold_seed(form.seed)) is not None:
        arguments["seed"] = seed
    return arguments


def measure_seconds(file: bytes) -> float:
    """Returns the duration that the file's header states; 0 if it states none."""
    try:
        header = read_header(file, "audio")
    except MediaHeaderError:
        return 0.0
    return header.seconds if isinstance(header, AudioHeader) else 0.0


async def respond_live(
    gateway: Gateway, call: Call, opening: Awaitable[AsyncGenerator[Event, None]], facts: EntryFacts, task: Task
) -> LiveResponse:
    """Returns the streamed transcript. opening: see open_answer. Raises GatewayError."""
    return LiveResponse(
        stream_transcript(gateway, call, await opening, task, facts),
        media_type=EVENT_STREAM,
        send_s=gateway.settings.send_seconds,
        comment_s=gateway.settings.keep_alive_seconds,
    )


async def stream_transcript(
    gateway: Gateway, call: Call, events: AsyncGenerator[Event, None], task: Task, facts: EntryFacts
) -> AsyncGenerator[bytes, None]:
    """Yields OpenAI's events transcript.text.delta, and at the end transcript.text.done or an error. Each is a chunk of
    vLLM's too, whose clients read nothing else."""
    trimmer = Trimmer()
    chunk = begin_chunks(task.name, call.id.removeprefix("req_"), call.model, unix_seconds())
    async with aclosing(events):
        try:
            async for item in events:
                if isinstance(item, TextDelta | TranscriptDelta) and item.stage == facts.stage:
                    for text in trimmer.add(item.text):
                        said = {"type": "transcript.text.delta", "delta": text}
                        yield event({**said, **chunk, "choices": [{"delta": {"content": text}}]})
                elif isinstance(item, Summary):
                    check_whole(gateway, call, item, task)
                    said = {"type": "transcript.text.done", "text": trimmer.text}
                    ended = [{"delta": {"content": ""}, "finish_reason": "stop"}]
                    yield event({**said, "usage": count_tokens(item), **chunk, "choices": ended})
                    if task.counts:
                        yield event({**chunk, "choices": [], "usage": read_usage(item)})
        except GatewayError as error:
            yield error_event(error)


async def respond_whole(
    gateway: Gateway,
    call: Call,
    opening: Awaitable[AsyncGenerator[Event, None]],
    form: TranscriptionRequest | TranslationRequest,
    task: Task,
    facts: EntryFacts,
    seconds: float,
) -> Response:
    """Returns the complete transcript. opening: see open_answer. seconds: the audio's duration. Raises GatewayError."""
    builder = ResultBuilder()
    notes: list[str] = []
    language = ""
    async with aclosing(await opening) as events:
        async for item in events:
            builder.add(item)
            if isinstance(item, StageFinished):
                language = language or item.language
                notes += map(call.paths.translate_text, item.notes)
    result = builder.result()
    if result.summary is None:
        raise InternalError("The answer ended without a summary.")
    check_whole(gateway, call, result.summary, task)
    heard = result.transcript if facts.has_transcript else result.texts.get(facts.stage, "")
    text, segments = heard.strip(), close_segments(heard, result.segments)
    headers = {NOTES_HEADER: "; ".join(notes)} if notes else None
    wanted = form.response_format or "json"
    if wanted in ("text", *_TIMED):
        said = f"{text}\n" if wanted == "text" else write_srt(segments) if wanted == "srt" else write_vtt(segments)
        return Response(said, media_type=PLAIN, headers=headers)
    if wanted == "json":
        return JSONResponse({"text": text, "usage": count_tokens(result.summary)}, headers=headers)
    verbose: dict[str, Any] = {
        "task": task.name,
        "language": "english" if task.name == "translate" else task.language or language,
        "duration": seconds,
        "text": text,
        "usage": {"type": "duration", "seconds": math.ceil(seconds)},
    }
    if facts.times_words:
        verbose["segments"] = describe_segments(segments, form.temperature or 0.0)
    return JSONResponse(verbose, headers=headers)


def check_whole(gateway: Gateway, call: Call, summary: Summary, task: Task) -> None:
    """Raises TranscriptCutError if words are missing at the end: without an error, nobody would know."""
    gateway.metrics.count_cut(task.route, summary.cut_stages)
    if summary.cut_stages:
        error = TranscriptCutError(
            f"The transcript reached the maximum length of {' and '.join(summary.cut_stages)}; send shorter audio.",
            param="file",
        )
        call.error = error.code or ""
        raise error


def count_tokens(summary: Summary) -> dict[str, Any]:
    """Returns OpenAI's usage of a transcript, in tokens."""
    usage = read_usage(summary)
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        # Which of them were audio is not known. OpenAI's agents SDK drops a transcript without these details.
        "input_token_details": {"text_tokens": usage["prompt_tokens"], "audio_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
