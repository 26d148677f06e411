"""Requests through one stage and through three: order and content of the responses, and what each stage receives."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2 as pb
from omni_stage.exchange import ToolCallPiece
from omni_stage.models.component import AudioPart, FinishReason, ImagePart, StageRequest, StageStep
from support.media.samples import encode_png, encode_wav, make_image
from support.stages import scripted_stages as lab


async def test_one_stage_answers_in_order(kit: Any) -> None:
    stage = await kit.serve()
    answer = await lab.ask(stage, metadata=(("x-request-id", "req-1"),))
    assert answer.code.name == "OK"
    assert answer.kinds == [
        ("thinker", "accepted"),
        ("thinker", "text"),
        ("thinker", "text"),
        ("thinker", "finished"),
        ("thinker", "summary"),
    ]
    assert answer.text == "Hello"
    assert answer.of("accepted")[0].request_id == "req-1"
    finished = answer.of("finished")[0]
    assert finished.finish_reason == events_pb2.FINISH_REASON_STOP
    assert finished.stop_reason == "2"
    assert (finished.usage.prompt_tokens, finished.usage.completion_tokens) == (3, 2)
    summary = answer.of("summary")[0]
    assert [outcome.stage for outcome in summary.stages] == ["thinker"]
    await stage.wait_for_metric("omni_stage_requests_total", 1, code="OK", reason="")
    await stage.wait_for_metric("omni_stage_inflight_bytes", 0)


async def test_timings_are_ordered(kit: Any) -> None:
    first, _, _ = await kit.chain()
    answer = await lab.ask(first, [lab.start(include=sampling_pb2.Include(timings=True)), lab.END])
    times = answer.of("finished", "thinker")[0].timings
    assert 0 < times.input_complete_ns <= times.engine_submitted_ns <= times.engine_scheduled_ns
    assert times.engine_scheduled_ns <= times.first_output_ns <= times.last_output_ns <= times.finished_ns
    assert times.first_output_ns <= times.transfer_start_ns <= times.transfer_end_ns <= times.finished_ns
    assert len(times.step_ns) == 3
    assert answer.of("finished", "token2wav")[0].timings.first_audio_ns > 0


async def test_the_queue_begins_when_the_engine_had_what_it_needed_to_start(kit: Any) -> None:
    """With streamed input, the engine is called before its input arrives, and reports itself when it could start.

    The times of later windows do not count.
    """

    async def speak(request: StageRequest) -> AsyncIterator[StageStep]:
        now = time.monotonic_ns()
        for step in (StageStep(token_ids=[7]), StageStep(finish_reason=FinishReason.STOP)):
            yield replace(step, submitted_ns=now, scheduled_ns=now + 5_000)
            now += 1_000_000

    stage = await kit.serve(speak)
    answer = await lab.ask(stage)
    times = answer.of("finished")[0].timings
    assert times.engine_scheduled_ns - times.engine_submitted_ns == 5_000
    await stage.wait_for_metric("omni_stage_queue_seconds_sum", 5e-6)


async def test_three_stages_hand_tensors_on_byte_for_byte(kit: Any) -> None:
    first, middle, last = await kit.chain()
    answer = await lab.ask(first)
    assert answer.code.name == "OK", answer.message
    got = middle.engine.requests[0].source.tensors
    assert torch.equal(got["x"], lab.rows(5))
    assert got["x"].dtype is torch.bfloat16
    assert torch.equal(got["ids"], torch.arange(5))
    assert torch.equal(last.engine.requests[0].source.tensors["codes"], torch.arange(5))
    assert answer.text == "Hello"
    stages = [(o.stage, o.finish_reason) for o in answer.of("summary")[0].stages]
    assert stages == [
        ("thinker", events_pb2.FINISH_REASON_STOP),
        ("talker", events_pb2.FINISH_REASON_LENGTH),
        ("token2wav", events_pb2.FINISH_REASON_DIFFUSION_DONE),
    ]
    tokens = {o.stage: (o.usage.completion_tokens, o.usage.codec_tokens) for o in answer.of("summary")[0].stages}
    assert tokens == {"thinker": (2, 0), "talker": (5, 5), "token2wav": (0, 0)}
    assert answer.kinds[0] == ("thinker", "accepted")
    assert answer.kinds[-1] == ("thinker", "summary")
    sent = answer.of("finished", "thinker")[0].usage.tensor_bytes_sent
    assert sent == 5 * (16 + 8)
    assert first.metric("omni_stage_edge_bytes_total", peer="talker", direction="sent") == sent
    assert middle.metric("omni_stage_edge_bytes_total", peer="thinker", direction="received") == sent
    assert middle.metric("omni_stage_edge_tensors_total", peer="thinker", direction="received") == 2


async def test_what_one_step_wrote_comes_in_the_order_in_which_it_was_written(kit: Any) -> None:
    async def all_at_once(request: Any) -> Any:
        call = ToolCallPiece(index=0, id="c1", name="weather", arguments="{}")
        yield StageStep(
            reasoning="Hm.", text="I look.", tool_calls=(call,), prompt_token_ids=[1], finish_reason=FinishReason.STOP
        )

    answer = await lab.ask(await kit.serve(all_at_once), [lab.start("x"), lab.END])
    kinds = [kind for _, kind in answer.kinds if kind in ("reasoning", "text", "tool_call")]
    assert kinds == ["reasoning", "text", "tool_call"]


async def test_large_tensors_travel_in_many_chunks(kit: Any) -> None:
    count = 200_000

    async def many(request: Any) -> Any:
        tensors = {"x": lab.rows(count), "ids": torch.arange(count)}
        yield StageStep(tensors=tensors, prompt_token_ids=[1], finish_reason=FinishReason.STOP)

    async def one_code(request: Any) -> Any:
        yield StageStep(tensors={"codes": torch.tensor([1])}, finish_reason=FinishReason.STOP)

    first, middle, _ = await kit.chain(
        thinker=many, talker=one_code, max_model_len=300_000, defaultSampling={"maxTokens": 299_999}
    )
    answer = await lab.ask(first, [lab.start("x"), lab.END])
    assert answer.code.name == "OK", answer.message
    assert torch.equal(middle.engine.requests[0].source.tensors["x"], lab.rows(count))
    assert first.metric("omni_stage_edge_chunk_seconds_count", peer="talker") >= 4


@pytest.mark.parametrize(
    ("encoding", "dtype", "scale"),
    [
        pytest.param(sampling_pb2.AUDIO_ENCODING_UNSPECIFIED, "<i2", 32767.0, id="default is s16le"),
        pytest.param(sampling_pb2.AUDIO_ENCODING_PCM_S16LE, "<i2", 32767.0, id="s16le clips"),
        pytest.param(sampling_pb2.AUDIO_ENCODING_PCM_F32LE, "<f4", 1.0, id="f32le as made"),
    ],
)
async def test_audio_chunks_join_to_the_whole(kit: Any, encoding: int, dtype: str, scale: float) -> None:
    first, _, _ = await kit.chain()
    answer = await lab.ask(first, [lab.start(audio=sampling_pb2.AudioOptions(encoding=encoding)), lab.END])
    chunks = answer.of("audio", "token2wav")
    waveform = torch.linspace(-1.5, 1.5, 30_000).numpy()
    expected = waveform if scale == 1.0 else np.round(np.clip(waveform, -1, 1) * np.float32(scale)).astype(dtype)
    joined = np.frombuffer(b"".join(chunk.data for chunk in chunks), dtype)
    assert np.array_equal(joined, expected)
    assert [chunk.first_sample for chunk in chunks] == [0, 12_000, 24_000]
    assert [chunk.last for chunk in chunks] == [False, False, True]
    assert {(chunk.sample_rate_hz, chunk.channels) for chunk in chunks} == {(24_000, 1)}
    assert answer.of("finished", "token2wav")[0].usage.audio_samples == 30_000


@pytest.mark.parametrize(
    ("modalities", "called"),
    [
        pytest.param([], ["thinker", "talker", "token2wav"], id="empty means all"),
        pytest.param([sampling_pb2.MODALITY_TEXT], ["thinker"], id="text needs the thinker only"),
        pytest.param([sampling_pb2.MODALITY_AUDIO], ["thinker", "talker", "token2wav"], id="audio needs all"),
    ],
)
async def test_modalities_decide_which_stages_are_called(kit: Any, modalities: list[int], called: list[str]) -> None:
    stages = await kit.chain()
    answer = await lab.ask(stages[0], [lab.start(modalities=modalities), lab.END])
    assert [s.server.config.stage for s in stages if s.engine.requests] == called
    assert bool(answer.text) == (not modalities or sampling_pb2.MODALITY_TEXT in modalities)
    assert stages[0].engine.requests[0].want_tensors == (len(called) > 1)


async def test_token_ids_only_on_request(kit: Any) -> None:
    first, _, _ = await kit.chain()
    include = sampling_pb2.Include(token_ids=True, codec_tokens=True)
    answer = await lab.ask(first, [lab.start(include=include), lab.END])
    thinker = answer.of("tokens", "thinker")
    assert [list(delta.ids) for delta in thinker] == [[7], [8]]
    assert [list(delta.prompt_ids) for delta in thinker] == [[1, 2, 3], []]
    assert [i for delta in answer.of("tokens", "talker") for i in delta.ids] == [0, 1, 2, 3, 4]


async def test_sampling_layers_and_the_one_seed(kit: Any) -> None:
    """Parameters of the request replace the defaults. The request's seed applies to stages without their own seed."""
    first, middle, last = await kit.chain(defaultSampling={"topP": 0.5, "temperature": 0.3})
    sampling = {
        "thinker": sampling_pb2.SamplingParams(temperature=0.9),
        "talker": sampling_pb2.SamplingParams(seed=5, top_k=0),
    }
    await lab.ask(first, [lab.start(seed=11, sampling=sampling), lab.END])
    thinker, talker, token2wav = (s.engine.requests[0].sampling for s in (first, middle, last))
    assert (thinker.temperature, thinker.top_p, thinker.max_tokens, thinker.seed) == (0.9, 0.5, 16, 11)
    assert (talker.seed, talker.top_k) == (5, 0)
    assert token2wav.seed == 11


async def test_voice_reaches_the_stage_that_speaks(kit: Any) -> None:
    first, _, last = await kit.chain()
    await lab.ask(first, [lab.start(audio=sampling_pb2.AudioOptions(voice="Ethan")), lab.END])
    assert last.engine.requests[0].voice == "Ethan"


async def test_chat_with_inline_and_chunked_media(kit: Any) -> None:
    stage = await kit.serve()
    image, waveform = encode_png(make_image(width=4, height=3)), encode_wav(np.zeros((1600, 2), np.float32))
    chat = {
        "messages": [
            {
                "role": "user",
                "parts": [
                    {"image": {"data": image}},
                    {"text": "what is this?"},
                    {"audio": {"chunked": {"media_id": 4, "total_bytes": len(waveform)}}},
                ],
            }
        ]
    }
    half = len(waveform) // 2
    messages = [
        pb.GenerateRequest(start=pb.Start(chat=chat)),
        pb.GenerateRequest(media={"media_id": 4, "offset": 0, "data": waveform[:half]}),
        pb.GenerateRequest(media={"media_id": 4, "offset": half, "data": waveform[half:]}),
        lab.END,
    ]
    answer = await lab.ask(stage, messages)
    assert answer.code.name == "OK", answer.message
    parts = stage.engine.requests[0].source.messages[0].parts
    assert isinstance(parts[0], ImagePart)
    assert parts[0].image.size == (4, 3)
    assert isinstance(parts[2], AudioPart)
    assert (parts[2].samples.shape, parts[2].sampling_rate_hz) == ((1600,), 16_000)


async def test_get_stage_describes_the_stage(kit: Any) -> None:
    _, middle, last = await kit.chain()
    info = await middle.stub.GetStage(pb.GetStageRequest())
    assert (info.pipeline, info.stage, info.component) == ("test", "talker", "test/stage")
    assert list(info.stages) == ["talker", "token2wav"]
    assert info.input_schema.id == "test/a2b"
    assert info.output_schema_hash == (await last.stub.GetStage(pb.GetStageRequest())).input_schema_hash
    assert info.limits.max_model_len == 64
    assert {"grpcio", "protobuf", "torch"} <= set(info.versions)
