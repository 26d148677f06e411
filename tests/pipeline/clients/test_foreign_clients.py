"""Clients without our code get text and audio: grpcurl by reflection, and stubs that protoc generated."""

from __future__ import annotations

import base64
import json
import os
import subprocess

import grpc
import pytest

from omni_proto.stage.v1 import events_pb2, sampling_pb2, stage_service_pb2, stage_service_pb2_grpc
from support.processes.pipelines import RunningPipeline
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.pipeline

SERVICE = "omni_proto.stage.v1.StageService"


def grpcurl(*arguments: str, data: str | None = None) -> str:
    command = [os.environ.get("GRPCURL", "grpcurl"), "-plaintext", "-max-time", "120"]
    if data is not None:
        command += ["-d", "@"]
    done = subprocess.run([*command, *arguments], input=data, capture_output=True, text=True, timeout=150)
    if done.returncode:
        raise AssertionError(f"grpcurl ended with {done.returncode}: {done.stderr}")
    return done.stdout


def parse_objects(text: str) -> list[dict]:
    """Returns the JSON objects that grpcurl printed one after another."""
    decoder, objects, position = json.JSONDecoder(), [], 0
    while text[position:].strip():
        position += len(text[position:]) - len(text[position:].lstrip())
        found, position = decoder.raw_decode(text, position)
        objects.append(found)
    return objects


def test_grpcurl_lists_the_service_by_reflection(tiny_pipeline: RunningPipeline) -> None:
    assert SERVICE in grpcurl(tiny_pipeline.endpoint, "list").split()


def test_grpcurl_gets_text_and_audio(tiny_pipeline: RunningPipeline) -> None:
    # A greedy talker continues to its token limit here. A sampled one may end before the first audio.
    greedy = {"talker": {"temperature": 0, "repetitionPenalty": 1, "maxTokens": 24}}
    start = {"text": "Tell me what the weather is like.", "seed": 3, "sampling": greedy}
    request = json.dumps({"start": start}) + json.dumps({"end": {}})
    events = parse_objects(grpcurl(tiny_pipeline.endpoint, f"{SERVICE}/Generate", data=request))
    assert "accepted" in events[0]
    assert "summary" in events[-1]
    assert "".join(e["text"]["text"] for e in events if "text" in e)
    waveform = [e["audio"] for e in events if "audio" in e]
    assert waveform[-1]["last"] is True
    assert waveform[0]["encoding"] == "AUDIO_ENCODING_PCM_S16LE"
    samples = sum(len(base64.b64decode(chunk["data"])) // 2 for chunk in waveform)
    finished = {e["stage"]: e["finished"] for e in events if "finished" in e}
    assert set(finished) == {"thinker", "talker", "token2wav"}
    assert samples == int(finished["token2wav"]["usage"]["audio_samples"]) > 0


def test_grpcurl_sees_the_error_with_its_details(tiny_pipeline: RunningPipeline) -> None:
    request = json.dumps({"start": {"text": "hello", "sampling": {"nobody": {"maxTokens": 3}}}}) + "{}"
    with pytest.raises(AssertionError, match=r"INVALID_ARGUMENT|InvalidArgument") as failure:
        grpcurl(tiny_pipeline.endpoint, f"{SERVICE}/Generate", data=request)
    assert "thinker" in str(failure.value)


def test_plain_stubs_get_text_and_audio(tiny_pipeline: RunningPipeline) -> None:
    pb = stage_service_pb2
    with grpc.insecure_channel(tiny_pipeline.endpoint) as channel:
        stub = stage_service_pb2_grpc.StageServiceStub(channel)
        audio = sampling_pb2.AudioOptions(encoding=sampling_pb2.AUDIO_ENCODING_PCM_F32LE, voice="Ethan")
        start = pb.Start(text="hello", seed=3, audio=audio)
        call = stub.Generate(iter([pb.GenerateRequest(start=start), pb.GenerateRequest(end=pb.End())]), timeout=120)
        events = list(call)
        described = stub.GetStage(pb.GetStageRequest(), timeout=PATIENCE_S)
    kinds = [event.WhichOneof("message") for event in events]
    assert kinds[0] == "accepted"
    assert kinds[-1] == "summary"
    assert {"text", "audio", "finished"} <= set(kinds)
    outcomes = {outcome.stage: outcome for outcome in events[-1].summary.stages}
    assert list(outcomes) == ["thinker", "talker", "token2wav"]
    assert outcomes["token2wav"].finish_reason == events_pb2.FINISH_REASON_DIFFUSION_DONE
    assert described.component == "qwen2_5_omni/thinker"
    assert list(described.stages) == ["thinker", "talker", "token2wav"]
    assert described.output_schema_hash
