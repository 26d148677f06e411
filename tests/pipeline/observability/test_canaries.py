"""The contents of a request never appear in logs, metrics or errors.

The tests put canary values into prompts, tokens and tensors, and search for them in everything that real stage servers
and engines wrote.
"""

from __future__ import annotations

import asyncio
import urllib.request
from typing import Any

import grpc
import pytest

from omni_proto.client import AsyncOmniClient, OmniRequestError, StageFailed, audio_part, image_part, system, user
from omni_proto.stage.v1 import stage_service_pb2 as pb, stage_service_pb2_grpc
from omni_proto.tensors import crc32c, encode_tensor_chunk, schema_from_proto, schema_hash, tensor_prompt
from support.media.samples import encode_png, encode_wav, make_audio, make_image
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S
from support.stages.scripted_stages import collect

pytestmark = pytest.mark.pipeline

WORD = "canarino7f3a"
NUMBER = 987_654_321
TOKENS = [471, 472, 473, 474]
"""Ids in the tiny vocabulary. A log that leaked them would print them next to each other."""
_FEW_TOKENS: dict[str, Any] = {"thinker": {"max_tokens": 4}, "talker": {"max_tokens": 8}}
FEW = {"qwen2_5_omni": {**_FEW_TOKENS, "token2wav": {"num_inference_steps": 2}}, "qwen3_omni": _FEW_TOKENS}
PIPELINES = {"qwen2_5_omni": "tiny_pipeline", "qwen3_omni": "qwen3_pipeline"}
BROKEN_PNG = b"\x89PNG\r\n\x1a\n" + WORD.encode() * 3

GOOD: dict[str, dict[str, Any]] = {
    "text": {"raw_text": f"say {WORD} twice", "cache_salt": WORD, "priority": 1},
    "chat": {"chat": [system(f"be {WORD}"), user(f"who is {WORD}?")]},
    "tokens": {"token_ids": TOKENS},
    "media": {"chat": user(image_part(encode_png(make_image(0))), audio_part(encode_wav(make_audio(0))), WORD)},
}
BAD: dict[str, dict[str, Any]] = {
    "voice": {"raw_text": WORD, "voice": WORD},
    "stage name": {"raw_text": WORD, "sampling": {WORD: {"seed": 1}}},
    "salt": {"raw_text": WORD, "cache_salt": WORD * 20},
    "stop text": {"raw_text": WORD, "sampling": {"talker": {"stop": [WORD]}}},
    "too long": {"raw_text": f"{WORD} " * 4000},
    "token beyond": {"token_ids": [*TOKENS, NUMBER]},
    "tokens too many": {"token_ids": TOKENS * 1000},
    "picture": {"chat": user(image_part(BROKEN_PNG), WORD)},
    "deadline": {"raw_text": WORD, "timeout": 0.01},
}


def read_metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return str(answer.read().decode())


def told(error: OmniRequestError) -> str:
    """Returns all text of an error."""
    return " ".join([str(error), repr(error), error.message, error.field, error.limit, error.reason])


@pytest.mark.parametrize("family", PIPELINES)
async def test_nothing_of_a_request_leaks(family: str, request: pytest.FixtureRequest) -> None:
    pipeline: RunningPipeline = request.getfixturevalue(PIPELINES[family])
    said: list[str] = []
    async with AsyncOmniClient(pipeline.endpoint) as client:
        for name, arguments in GOOD.items():
            # Bare token ids have no assistant turn, so Qwen3-Omni's talker has nothing to speak.
            modalities = ("text",) if (name, family) == ("tokens", "qwen3_omni") else ()
            await client.run(**{"sampling": FEW[family], "timeout": PATIENCE_S, "modalities": modalities, **arguments})
        for name, arguments in BAD.items():
            for partial in (False, True):
                try:
                    result = await client.run(
                        **{"sampling": FEW[family], "timeout": PATIENCE_S, "allow_partial": partial, **arguments}
                    )
                except OmniRequestError as error:
                    said.append(told(error))
                else:
                    assert partial, name
                    said += [told(failed.error) for failed in result.failed.values() if isinstance(failed, StageFailed)]
    said += await hostile_edges(pipeline)
    assert len(said) > len(BAD)
    for stage, ports in pipeline.stages.items():
        metrics = await asyncio.to_thread(read_metrics, ports["metrics"])
        assert f'component="{family}/{stage}"' in metrics
        said.append(metrics)
    said.append(pipeline.logs())
    for text in said:
        for canary in (WORD, str(NUMBER), "471, 472", "471,472", "[471"):
            assert canary not in text, f"{canary} was found near {text[max(0, text.find(canary) - 200) :][:120]!r}"


async def hostile_edges(pipeline: RunningPipeline) -> list[str]:
    """Sends edge tensors whose bytes are the canary. Returns what the stages answered.

    The tensors are sent with a correct checksum, with a wrong one, and with the canary as the source's name.
    """
    said = []
    thinker, talker, audio = pipeline.stages
    for stage, source in ((talker, thinker), (audio, talker)):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{pipeline.stages[stage]['grpc']}") as channel:
            stub = stage_service_pb2_grpc.StageServiceStub(channel)
            schema = schema_from_proto((await stub.GetStage(pb.GetStageRequest(), timeout=PATIENCE_S)).input_schema)
            generate = channel.stream_stream(
                "/omni_proto.stage.v1.StageService/Generate",
                request_serializer=lambda m: m if isinstance(m, bytes) else m.SerializeToString(),
                response_deserializer=pb.GenerateResponse.FromString,
            )
            spelled = NUMBER.to_bytes(8, "little")
            for crc, source_name in ((None, source), (1, source), (None, WORD)):
                prompt = tensor_prompt(schema, source_name, [(name, 1) for name in schema.names])
                messages: list[Any] = [
                    pb.GenerateRequest(start=pb.Start(tensors=prompt, edge_schema_hash=schema_hash(schema)))
                ]
                for spec in schema.tensors:
                    data = (spelled * (spec.row_bytes // 8 + 1))[: spec.row_bytes]
                    messages.append(
                        encode_tensor_chunk(spec.name, 0, 1, crc32c(data) if crc is None else crc, True, data)
                    )
                messages.append(pb.GenerateRequest(end=pb.End()))
                answer = await collect(generate(iter(messages), timeout=PATIENCE_S))
                # A single row is a prompt without a reply, so the talker has nothing to speak and returns no error.
                assert answer.code is not grpc.StatusCode.OK or (stage, crc, source_name) == ("talker", None, source)
                said.append(f"{answer.message} {answer.status}")
    return said
