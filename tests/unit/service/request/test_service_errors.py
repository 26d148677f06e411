"""Errors that a stage itself raises: their code and ErrorInfo, and what they must not leak."""

from __future__ import annotations

import json
import logging
from typing import Any

import grpc
import pytest
import torch
from google.rpc import error_details_pb2

from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2 as pb
from omni_proto.tensors import encode_tensor_chunk, schema_hash, tensor_prompt
from omni_stage import errors
from omni_stage.process.stage_log import configure_stage_logging
from support.processes.polling import PATIENCE_S
from support.stages import scripted_stages as lab

CANARY = "CANARY-7f3a"
MiB = 1 << 20


def sampled(stage: str = "thinker", **fields: Any) -> dict[str, Any]:
    return {"sampling": {stage: sampling_pb2.SamplingParams(**fields)}}


BAD_STARTS = [
    pytest.param({"text": ""}, "INVALID_REQUEST", "start.text", id="empty text"),
    pytest.param({"text": "x" * 300}, "REQUEST_TOO_LARGE", "start.text", id="text over maxPromptChars"),
    pytest.param({}, "INVALID_REQUEST", "start.input", id="no input"),
    pytest.param({"token_ids": {"ids": []}}, "INVALID_REQUEST", "start.token_ids.ids", id="no token ids"),
    pytest.param({"token_ids": {"ids": [2**31]}}, "INVALID_REQUEST", "start.token_ids.ids", id="token id too big"),
    pytest.param({"token_ids": {"ids": [1] * 64}}, "PROMPT_TOO_LONG", "start.token_ids.ids", id="prompt too long"),
    pytest.param({"chat": {}}, "INVALID_REQUEST", "start.chat.messages", id="empty chat"),
    pytest.param(
        {"chat": {"messages": [{"role": "robot", "parts": [{"text": "x"}]}]}},
        "INVALID_REQUEST",
        "start.chat.messages[0].role",
        id="unknown role",
    ),
    pytest.param(
        {"chat": {"messages": [{"role": "user", "parts": []}]}},
        "INVALID_REQUEST",
        "start.chat.messages[0].parts",
        id="message without parts",
    ),
    pytest.param(
        {"chat": {"messages": [{"role": "user", "parts": [{"image": {"data": b"x" * 2048}}]}]}},
        "REQUEST_TOO_LARGE",
        "start.chat.messages[0].parts[0].image",
        id="medium over maxMediaBytes",
    ),
    pytest.param(
        {"chat": {"messages": [{"role": "user", "parts": [{"image": {}}]}]}},
        "INVALID_MEDIA",
        "start.chat.messages[0].parts[0].image",
        id="medium without source",
    ),
    pytest.param(
        {"chat": {"messages": [{"role": "user", "parts": [{"image": {"data": b"x"}}] * 3}]}},
        "REQUEST_TOO_LARGE",
        "start.chat.messages[0].parts[2].image",
        id="too many media",
    ),
    pytest.param({"text": "x", **sampled("nobody")}, "INVALID_REQUEST", "start.sampling", id="unknown stage"),
    pytest.param(
        {"text": "x", **sampled(top_p=2.0)}, "INVALID_REQUEST", "start.sampling[thinker].top_p", id="top_p out of range"
    ),
    pytest.param(
        {"text": "x", **sampled(temperature=float("nan"))},
        "INVALID_REQUEST",
        "start.sampling[thinker].temperature",
        id="temperature NaN",
    ),
    pytest.param(
        {"text": "x", **sampled(temperature=3.0)},
        "INVALID_REQUEST",
        "start.sampling[thinker].temperature",
        id="temperature above the engine's",
    ),
    pytest.param(
        {"text": "x", **sampled(num_inference_steps=4)},
        "INVALID_REQUEST",
        "start.sampling[thinker].num_inference_steps",
        id="parameter of another kind of stage",
    ),
    pytest.param({"text": "x", "seed": 2**63}, "INVALID_REQUEST", "start.seed", id="seed too big"),
    pytest.param({"text": "x", "modalities": [2]}, "INVALID_REQUEST", "start.modalities[0]", id="undeclared"),
    pytest.param({"text": "x", "modalities": [0]}, "INVALID_REQUEST", "start.modalities[0]", id="unspecified modality"),
    pytest.param({"text": "x", "audio": {"voice": "Nobody"}}, "INVALID_REQUEST", "start.audio.voice", id="voice"),
    pytest.param({"text": "x", "audio": {"encoding": 9}}, "INVALID_REQUEST", "start.audio.encoding", id="encoding"),
    pytest.param({"tensors": {}}, "INVALID_REQUEST", "start.input", id="tensors to an entry stage"),
    pytest.param(
        {"text": "x", "edge_schema_hash": "00"},
        "INVALID_REQUEST",
        "start.edge_schema_hash",
        id="hash to an entry stage",
    ),
]


@pytest.mark.parametrize(("fields", "reason", "field"), BAD_STARTS)
async def test_bad_start_names_its_field(kit: Any, fields: dict[str, Any], reason: str, field: str) -> None:
    limits = {"maxPromptChars": 200, "maxMediaBytes": 1024, "maxMediaPerRequest": 2}
    component = lab.ScriptedComponent(voices=("Chelsie",))
    stage = await kit.serve(limits=limits, component=component)
    answer = await lab.ask(
        stage, [pb.GenerateRequest(start=pb.Start(**fields)), lab.END], metadata=(("x-request-id", "r1"),)
    )
    assert (answer.info.reason, answer.info.metadata["field"]) == (reason, field)
    assert answer.info.domain == "omnipipeline.io"
    assert (answer.info.metadata["stage"], answer.info.metadata["request_id"]) == ("thinker", "r1")
    assert answer.responses == []
    assert stage.engine.requests == []
    if answer.code is grpc.StatusCode.INVALID_ARGUMENT:
        assert answer.detail(error_details_pb2.BadRequest).field_violations[0].field == field
    else:
        assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    await stage.wait_for_metric("omni_stage_requests_total", 1, code=answer.code.name, reason=reason)


def media(media_id: int = 1, offset: int = 0, data: bytes = b"abcd") -> pb.GenerateRequest:
    return pb.GenerateRequest(media={"media_id": media_id, "offset": offset, "data": data})


def chunked_start() -> pb.GenerateRequest:
    part = {"image": {"chunked": {"media_id": 1, "total_bytes": 8}}}
    return pb.GenerateRequest(start=pb.Start(chat={"messages": [{"role": "user", "parts": [part]}]}))


END = pb.GenerateRequest(end=pb.End())
TEXT = pb.GenerateRequest(start=pb.Start(text="x"))
VIOLATIONS = [
    pytest.param([], "the stream ended before Start", id="nothing"),
    pytest.param([END], "the first message must be Start", id="End first"),
    pytest.param([pb.GenerateRequest()], "empty message", id="empty message"),
    pytest.param([TEXT], "the stream ended before End", id="no End"),
    pytest.param([TEXT, TEXT, END], "Start arrived twice", id="two Starts"),
    pytest.param([TEXT, media(), END], "did not announce", id="unannounced medium"),
    pytest.param(
        [TEXT, pb.GenerateRequest(tensor={"name": "x"}), END], "announced no tensors", id="unannounced tensor"
    ),
    pytest.param([chunked_start(), media(offset=2), END], "begins at byte 2", id="media gap"),
    pytest.param([chunked_start(), media(data=b"123456789"), END], "more than the announced", id="media overflow"),
    pytest.param([chunked_start(), media(data=b""), END], "holds no bytes", id="empty media chunk"),
    pytest.param([chunked_start(), media(), END], "after 4 of 8 bytes", id="media too short"),
]


@pytest.mark.parametrize(("messages", "says"), VIOLATIONS)
async def test_protocol_violations_are_named(kit: Any, messages: list[Any], says: str) -> None:
    stage = await kit.serve()
    answer = await lab.ask(stage, messages)
    assert answer.code is grpc.StatusCode.INVALID_ARGUMENT
    assert answer.info.reason == "PROTOCOL_VIOLATION"
    assert says in answer.message
    assert answer.of("finished", "thinker") == []
    if messages[:1] != [TEXT]:
        assert stage.engine.requests == [], (
            "only a request whose whole prompt is in Start may reach the engine before End"
        )
    await stage.wait_for_metric("omni_stage_inflight_bytes", 0)


async def test_bytes_that_are_no_message(kit: Any) -> None:
    stage = await kit.serve()
    async with grpc.aio.insecure_channel(stage.target) as channel:
        method = channel.stream_stream("/omni_proto.stage.v1.StageService/Generate")
        answer = await lab.collect(method(iter([b"\xff\xff\xff"]), timeout=PATIENCE_S))
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PROTOCOL_VIOLATION")


# The edge ------------------------------------


def edge_start(rows: int = 2, **changes: Any) -> pb.GenerateRequest:
    prompt = tensor_prompt(lab.EDGE_B, changes.get("source", "talker"), [("codes", rows)])
    return pb.GenerateRequest(
        start=pb.Start(tensors=prompt, edge_schema_hash=changes.get("hash", schema_hash(lab.EDGE_B)))
    )


def codes(offset: int = 0, values: tuple[int, ...] = (1, 2), last: bool = True, crc: int | None = None) -> bytes:
    from omni_proto.tensors import crc32c

    data = torch.tensor(values, dtype=torch.int64).numpy().tobytes()
    return encode_tensor_chunk("codes", offset, len(values), crc32c(data) if crc is None else crc, last, data)


EDGE_CASES = [
    pytest.param({"hash": "0" * 64}, [], "FAILED_PRECONDITION", "EDGE_SCHEMA_MISMATCH", id="other schema"),
    pytest.param({"source": "thinker"}, [], "INVALID_ARGUMENT", "INVALID_REQUEST", id="other source stage"),
    pytest.param({}, [codes(crc=1)], "DATA_LOSS", "CORRUPT_TENSOR", id="wrong checksum"),
    pytest.param({}, [codes(offset=1)], "DATA_LOSS", "CORRUPT_TENSOR", id="missing rows"),
    pytest.param({}, [codes(last=False)], "DATA_LOSS", "CORRUPT_TENSOR", id="no last chunk"),
    pytest.param({"rows": 1}, [codes()], "INVALID_ARGUMENT", "INVALID_TENSOR", id="more rows than announced"),
    pytest.param({"rows": 2**62}, [], "RESOURCE_EXHAUSTED", "REQUEST_TOO_LARGE", id="announces more than the budget"),
]


@pytest.mark.parametrize(("changes", "chunks", "code", "reason"), EDGE_CASES)
async def test_edge_errors(kit: Any, changes: dict[str, Any], chunks: list[bytes], code: str, reason: str) -> None:
    component = lab.ScriptedComponent(input_schema=lab.EDGE_B)
    stage = await kit.serve(
        lab.make_audio, stage="token2wav", outputs=["Audio"], input={"source": "talker"}, component=component
    )
    async with grpc.aio.insecure_channel(stage.target) as channel:
        method = channel.stream_stream(
            "/omni_proto.stage.v1.StageService/Generate",
            request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
            response_deserializer=pb.GenerateResponse.FromString,
        )
        answer = await lab.collect(method(iter([edge_start(**changes), *chunks, lab.END]), timeout=PATIENCE_S))
    assert (answer.code.name, answer.info.reason) == (code, reason)
    assert stage.engine.requests == []


# The engine ------------------------------------

ENGINE_ERRORS = [
    errors.ModelExecutionError("the model failed"),
    errors.QueueTimeoutError("waited too long"),
    errors.EngineDeadStageError("died"),
    errors.PromptTooLongError("too long", field="start.text"),
    errors.InvalidTensorError("no", field="x"),
    errors.NonFiniteTensorError("NaN", field="x"),
    errors.StepTimeoutError("stuck"),
]


@pytest.mark.parametrize("error", ENGINE_ERRORS, ids=lambda e: type(e).__name__)
async def test_engine_errors_keep_their_code(kit: Any, error: errors.OmniStageError) -> None:
    stage = await kit.serve(lab.failing(error))
    answer = await lab.ask(stage)
    assert answer.code.name == error.code
    assert answer.message == str(error)
    assert answer.text == "so far"


async def test_unknown_error_is_internal_and_says_nothing(kit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    configure_stage_logging("thinker", "json")
    stage = await kit.serve(lab.failing(ValueError(f"bad prompt {CANARY}")))
    answer = await lab.ask(stage, [lab.start(f"say {CANARY}"), lab.END], metadata=(("x-request-id", "r9"),))
    assert (answer.code, answer.info.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert CANARY not in answer.message + str(answer.status)
    assert "r9" in answer.message
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert any("ValueError" in str(line.get("error")) for line in lines)
    assert CANARY not in json.dumps(lines)


async def test_canaries_never_reach_logs_metrics_or_errors(kit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from prometheus_client import generate_latest

    configure_stage_logging("thinker", "text")
    logging.getLogger().setLevel(logging.DEBUG)
    stages = await kit.chain()
    bad = [
        [lab.start(CANARY), lab.END],
        [lab.start(CANARY, sampling={CANARY: sampling_pb2.SamplingParams()}), lab.END],
        [lab.start(CANARY, audio=sampling_pb2.AudioOptions(voice=CANARY)), lab.END],
        [lab.start(CANARY, sampling={"thinker": sampling_pb2.SamplingParams(stop=[CANARY * 100])}), lab.END],
        [
            pb.GenerateRequest(start=pb.Start(chat={"messages": [{"role": CANARY, "parts": [{"text": CANARY}]}]})),
            lab.END,
        ],
    ]
    answers = [await lab.ask(stages[0], messages) for messages in bad]
    assert [a.code.name for a in answers] == ["OK", *["INVALID_ARGUMENT"] * 4]
    said = "".join(a.message + str(a.status) for a in answers) + capsys.readouterr().err
    said += "".join(generate_latest(stage.registry).decode() for stage in stages)
    assert CANARY not in said
