"""OpenAI's own client gets transcripts and translations in each form, from models that hear and from no others."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from openai.types.audio import TranscriptionSegment, TranscriptionVerbose, TranslationVerbose
from pydantic import BaseModel

from omni_gateway.entries.pipelines import ServedPipeline
from omni_gateway.openai.transcripts import TASKS
from omni_gateway.settings import GatewaySettings
from support.peers.answering_entry import serve_entry
from support.peers.gateways import serve_gateway
from support.peers.hearing_entry import CUT_SEED, FAILING_SEED, HEARD, HearingEntry, serve_hearing, thinker, transcriber
from support.processes.polling import PATIENCE_S
from support.tables import each_row

WORDS = "".join(HEARD).strip()
SRT = "1\n00:00:00,000 --> 00:00:01,240\nGood morning, said Ada.\n\n2\n00:00:01,300 --> 01:02:05,061\nHello, Bob.\n\n"
VTT = (
    "WEBVTT\n\n00:00:00.000 --> 00:00:01.240\nGood morning, said Ada.\n\n00:00:01.300 --> 01:02:05.061\nHello, Bob.\n\n"
)
ENTRIES: dict[str, dict[str, Any]] = {
    "dialogue": {},
    "whisper": transcriber(),
    "thinker": thinker("image", "audio"),
    "blind": thinker("image"),
}


def wav(seconds: float = 2.0) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        writer.writeframes(bytes(int(seconds * 32_000)))
    return file.getvalue()


FILE = ("speech.wav", wav(), "audio/wav")


class Served:
    """A gateway in front of one entry of each kind, with OpenAI's client."""

    def __init__(self, stack: ExitStack) -> None:
        self.entries: dict[str, HearingEntry] = {}
        pipelines = []
        for name, facts in ENTRIES.items():
            port, self.entries[name] = stack.enter_context(serve_hearing(**facts))
            pipelines.append(ServedPipeline(name, f"grpc://127.0.0.1:{port}"))
        port, _ = stack.enter_context(serve_entry())
        pipelines.append(ServedPipeline("deaf", f"grpc://127.0.0.1:{port}"))
        self.url = stack.enter_context(serve_gateway(*pipelines))
        lenient = GatewaySettings.model_validate({"unsupportedFields": "Ignore", "media": {"maxBytes": 100_000}})
        self.lenient = stack.enter_context(serve_gateway(*pipelines, settings=lenient))
        self.client = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def post(self, model: str = "dialogue", *, url: str = "", route: str = "transcriptions", **fields: Any) -> Any:
        files = {"file": fields.pop("file", FILE)}
        data = {"model": model, **fields}
        return httpx.post(f"{url or self.url}/v1/audio/{route}", data=data, files=files, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack)


@pytest.mark.parametrize("model", ["dialogue", "whisper", "thinker"])
def test_a_transcript_is_the_words_that_the_entry_heard(served: Served, model: str) -> None:
    answer = served.client.audio.transcriptions.create(model=model, file=FILE)
    assert answer.text == WORDS
    assert answer.usage is not None
    assert answer.usage.to_dict() == {
        "type": "tokens",
        "input_tokens": 4,
        "input_token_details": {"text_tokens": 4, "audio_tokens": 0},
        "output_tokens": 9,
        "total_tokens": 13,
    }
    said = served.client.audio.transcriptions.create(model=model, file=wav(), response_format="text")
    assert said == f"{WORDS}\n"
    start = served.entries[model].starts[-1]
    assert start.sampling[served.entries[model].described.stage].temperature == 0
    assert start.chat.messages[0].parts[0].audio.media_type == "audio/wav"


@pytest.mark.parametrize(("model", "timed"), [("dialogue", True), ("whisper", True), ("thinker", False)])
def test_only_a_stage_that_states_times_gives_segments(served: Served, model: str, timed: bool) -> None:
    answer = served.client.audio.transcriptions.create(
        model=model, file=FILE, response_format="verbose_json", language="en", temperature=0.5
    )
    assert isinstance(answer, TranscriptionVerbose)
    assert (answer.text, answer.language, answer.duration) == (WORDS, "en", 2.0)
    assert answer.usage is not None
    assert answer.usage.to_dict() == {"type": "duration", "seconds": 2}
    if not timed:
        assert answer.segments is None
        return
    segments = answer.segments or []
    assert all(isinstance(one, TranscriptionSegment) for one in segments)
    assert [(one.id, one.start, one.end, one.text) for one in segments] == [
        (0, 0.0, 1.24, "  Good morning, said Ada."),
        (1, 1.3, 3725.061, " Hello, Bob.\n"),
    ]
    assert {one.temperature for one in segments} == {0.5}
    assert segments[0].compression_ratio < 1


@pytest.mark.parametrize("model", ["dialogue", "whisper", "thinker"])
@pytest.mark.parametrize(
    ("route", "kind"), [("transcriptions", TranscriptionVerbose), ("translations", TranslationVerbose)]
)
def test_a_typed_client_reads_every_field(served: Served, model: str, route: str, kind: type[BaseModel]) -> None:
    """OpenAI's types hold no null where clients do not expect one. Rust's and Java's refuse the whole answer."""
    answer = served.post(model, route=route, response_format="verbose_json")
    kind.model_validate_json(answer.text, strict=True)


def test_subtitles_need_times(served: Served) -> None:
    create = served.client.audio.transcriptions.create
    assert create(model="dialogue", file=FILE, response_format="srt") == SRT
    vtt = create(model="dialogue", file=FILE, response_format="vtt")
    assert vtt == VTT
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="thinker", file=FILE, response_format="srt")
    assert caught.value.param == "response_format"


def test_the_language_is_the_one_that_the_stage_names(served: Served) -> None:
    answer = served.post(response_format="verbose_json")
    assert answer.json()["language"] == "de"


@pytest.mark.parametrize("model", ["dialogue", "thinker"])
def test_a_stream_has_openai_s_events(served: Served, model: str) -> None:
    stream = served.client.audio.transcriptions.create(model=model, file=FILE, stream=True)
    events: list[Any] = list(stream)
    assert [one.delta for one in events[:-1]] == ["Good", " morning", ", said Ada.", " Hello,", " Bob."]
    assert (events[-1].type, events[-1].text) == ("transcript.text.done", WORDS)
    assert events[-1].usage.total_tokens == 13


def test_a_stream_that_fails_ends_with_an_error(served: Served) -> None:
    for seed, code in ((FAILING_SEED, "service_unavailable"), (CUT_SEED, "transcript_cut")):
        answer = served.post(stream="true", seed=seed)
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
        assert events[0]["type"] == "transcript.text.delta"
        assert events[-1]["error"]["code"] == code


def test_a_transcript_that_lacks_words_is_an_error(served: Served) -> None:
    answer = served.post(seed=CUT_SEED)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "transcript_cut"


def test_a_translation_is_english(served: Served) -> None:
    answer = served.client.audio.translations.create(model="dialogue", file=FILE, prompt="Names: Ada")
    assert answer.text == WORDS
    asked = json.loads(served.entries["dialogue"].starts[-1].chat.template_arguments)
    assert asked == {"task": "translate", "prompt": "Names: Ada"}
    verbose: Any = served.client.audio.translations.create(model="whisper", file=FILE, response_format="verbose_json")
    assert (verbose.language, verbose.duration, len(verbose.segments)) == ("english", 2.0, 2)
    served.client.audio.translations.create(model="thinker", file=FILE)
    assert served.entries["thinker"].starts[-1].chat.messages[0].parts[1].text == TASKS["translate"]


@pytest.mark.parametrize("task", ["transcribe", "translate"])
def test_what_vllm_s_clients_add_reaches_the_stage(served: Served, task: str) -> None:
    """The fields of examples/online_serving/openai_transcription_client.py and of `vllm bench serve`."""
    client = served.client.audio.transcriptions if task == "transcribe" else served.client.audio.translations
    wanted = {"temperature": 0.5, "top_p": 0.75, "top_k": 9, "min_p": 0.25, "repetition_penalty": 1.5}
    penalties = {"frequency_penalty": 0.5, "presence_penalty": -0.5}
    extra = {**wanted, **penalties, "seed": 4419, "language": "de", "stream": "True", "stream_include_usage": "True"}
    said: Any = client.with_raw_response.create(model="whisper", file=FILE, extra_body=extra)
    events = [json.loads(line[6:]) for line in said.text.splitlines() if line]
    assert (events[-2]["text"], events[-2]["usage"]["total_tokens"]) == (WORDS, 13)
    # Read as `vllm bench serve` and vLLM's example do.
    deltas = [one["choices"][0]["delta"].get("content") for one in events if one["choices"]]
    assert ("".join(deltas), events[-1]["usage"]["completion_tokens"]) == (WORDS, 9)
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    prefix, kind = {"transcribe": ("trsc-", "transcription.chunk"), "translate": ("trsl-", "translation.chunk")}[task]
    assert {(one["object"], one["model"], one["id"][:5], one["created"] > 0) for one in events} == {
        (kind, "whisper", prefix, True)
    }
    start = served.entries["whisper"].starts[-1]
    sampling = start.sampling["asr"]
    assert {name: getattr(sampling, name) for name in (wanted | penalties)} == wanted | penalties
    assert (start.seed, json.loads(start.chat.template_arguments)) == (4419, {"task": task, "language": "de"})


def test_a_transcriber_gets_options_and_a_thinker_an_instruction(served: Served) -> None:
    for model in ("whisper", "thinker"):
        served.client.audio.transcriptions.create(model=model, file=FILE, language="de", prompt="Ulm")
    asked = served.entries["whisper"].starts[-1].chat
    assert [part.WhichOneof("part") for part in asked.messages[0].parts] == ["audio"]
    assert json.loads(asked.template_arguments) == {"task": "transcribe", "language": "de", "prompt": "Ulm"}
    asked = served.entries["thinker"].starts[-1].chat
    assert not asked.template_arguments
    assert asked.messages[0].parts[1].text == (
        f"{TASKS['transcribe']} The language is de.\nWhat was said before, or names that may occur: Ulm"
    )


@each_row(
    "sent, taken",
    [
        *(("en-US", "en-US"), (" DE ", "DE"), ("pt_BR", "pt-BR"), ("zh-Hans-CN", "zh-Hans-CN"), ("yue", "yue")),
        *((value, None) for value in ("auto", "AUTO", "detect", "multi", "und", " ", "", "null", "undefined", "None")),
    ],
)
def test_languages_are_taken_as_programs_write_them(served: Served, sent: str, taken: str | None) -> None:
    assert served.post("whisper", language=sent).status_code == 200
    assert json.loads(served.entries["whisper"].starts[-1].chat.template_arguments).get("language") == taken


def test_an_unknown_language_is_refused_with_the_remedy(served: Served) -> None:
    error = served.post(language="english").json()["error"]
    assert error["param"] == "language"
    assert "ISO 639-1 such as 'en'; leave it out, or send 'auto'" in error["message"]


@pytest.mark.parametrize("model", ["blind", "deaf"])
def test_a_model_that_hears_nothing_is_refused(served: Served, model: str) -> None:
    answer = served.post(model)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")


VERDICTS: list[tuple[dict[str, Any], str]] = [
    ({"chunking_strategy": "auto"}, ""),
    ({"timestamp_granularities": ["segment"], "response_format": "verbose_json"}, ""),
    ({"chunking_strategy": {"type": "server_vad", "threshold": 0.5}}, "ignored"),
    ({"keywords": ["Ada", "Bob"]}, "ignored"),
    ({"languages": ["en", "de"]}, "ignored"),
    ({"include": ["logprobs"]}, "refused"),
    ({"known_speaker_names": ["Ada"]}, "refused"),
    ({"known_speaker_references": ["data:audio/wav;base64,AAAA"]}, "refused"),
    ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "refused"),
    ({"timestamp_granularities": ["segment"]}, "wrong"),
    ({"response_format": "diarized_json"}, "wrong"),
    ({"temperature": 1.5}, "wrong"),
    ({"language": "the language of my mother"}, "wrong"),
    ({"language": "english"}, "wrong"),
    *(({"extra_body": one}, "") for one in ({"stream_include_usage": True}, {"n": 1}, {"use_beam_search": False})),
    *(({"extra_body": one}, "ignored") for one in ({"hotwords": "Ada"}, {"max_completion_tokens": 9})),
    ({"extra_body": {"use_beam_search": True}}, "refused"),
    ({"extra_body": {"vllm_xargs": "{}"}}, "unknown"),
]


@pytest.mark.parametrize(("fields", "verdict"), VERDICTS)
def test_every_field_of_openai_s_form_is_taken_ignored_or_refused(
    served: Served, fields: dict[str, Any], verdict: str
) -> None:
    name = next(iter(fields.get("extra_body", fields)))
    create = served.client.audio.transcriptions.with_raw_response.create
    if verdict in ("", "ignored"):
        answer = create(model="dialogue", file=FILE, **fields)
        assert answer.headers.get("x-omnipipeline-ignored", "") == (name if verdict else "")
        return
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="dialogue", file=FILE, **fields)
    assert caught.value.param == name
    lenient = openai.OpenAI(base_url=f"{served.lenient}/v1", api_key="none", max_retries=0).audio.transcriptions
    if verdict != "wrong":
        answer = lenient.with_raw_response.create(model="dialogue", file=FILE, **fields)
        assert answer.headers["x-omnipipeline-ignored"] == name


def test_no_field_of_openai_s_client_is_unknown() -> None:
    from openai.types.audio.transcription_create_params import TranscriptionCreateParamsStreaming
    from openai.types.audio.translation_create_params import TranslationCreateParams

    from omni_gateway.openai.audio_requests import TranscriptionRequest, TranslationRequest

    known = set(TranscriptionRequest.model_fields)
    assert set(TranscriptionCreateParamsStreaming.__annotations__) <= known
    assert set(TranslationCreateParams.__annotations__) <= set(TranslationRequest.model_fields)


def test_wrong_files_are_refused_by_name(served: Served) -> None:
    for file, code in ((("a.wav", b"no audio"), "invalid_media"), (("a.wav", b""), "invalid_media")):
        error = served.post(file=file).json()["error"]
        assert (error["param"], error["code"]) == ("file", code)
    large = served.post(url=served.lenient, file=("a.wav", wav(4)))
    assert (large.status_code, large.json()["error"]["param"]) == (413, "file")
    missing = httpx.post(
        f"{served.url}/v1/audio/transcriptions", files={"model": (None, "dialogue")}, timeout=PATIENCE_S
    )
    assert missing.json()["error"]["param"] == "file"
    body = httpx.post(f"{served.url}/v1/audio/transcriptions", json={"model": "dialogue"}, timeout=PATIENCE_S)
    assert (body.status_code, body.json()["error"]["code"]) == (400, "invalid_form")


def test_notes_of_the_stage_are_a_header(served: Served) -> None:
    assert served.post().headers["x-omnipipeline-notes"] == "the audio has gaps"


def test_the_document_describes_the_form(served: Served) -> None:
    paths = httpx.get(f"{served.url}/openapi.json", timeout=PATIENCE_S).json()["paths"]
    form = paths["/v1/audio/transcriptions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    assert form["required"] == ["file", "model"]
    assert form["properties"]["file"]["format"] == "binary"
