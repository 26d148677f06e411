"""Unmodified clients get the same speech through the gateway as over gRPC. Hostile media are refused."""

from __future__ import annotations

import base64
import io
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import openai
import pytest

from omni_gateway.media.encode import encode_whole
from omni_proto.client import GenerationResult, OmniClient, audio_part, image_part, user, video_part
from support.media.hostile_media import CORPUS, REFUSED, UNDECODABLE
from support.media.videos import encode_video
from support.processes.pipelines import RunningPipeline

pytestmark = pytest.mark.pipeline

MODEL = "tiny-omni"
QUESTION = "Tell me what the weather is like."
LIMIT = {"thinker": {"max_tokens": 8}}


@pytest.fixture(scope="module")
def client(tiny_gateway: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tiny_gateway}/v1", api_key="none", max_retries=0)


@dataclass(frozen=True)
class Served:
    """A family's pipeline: a client of its gateway, and its gRPC endpoint."""

    client: openai.OpenAI
    endpoint: str
    step: int
    """By how much a 16-bit sample may differ. Over a Stream edge, the number of frames decoded together differs from
    call to call. This changes the order of sums, so a sample may round to the next value."""

    def check(self, heard: bytes, expected: bytes) -> None:
        """Checks that two PCM answers are equal within `step`, and not silent."""
        assert len(heard) == len(expected) > 0
        ours, theirs = (np.frombuffer(pcm, "<i2").astype(np.int32) for pcm in (heard, expected))
        assert np.abs(ours - theirs).max() <= self.step
        assert theirs.any()


@pytest.fixture(scope="module", params=["tiny", "qwen3"])
def served(request: pytest.FixtureRequest) -> Served:
    """One pipeline of each family: Qwen2.5-Omni with Full edges, Qwen3-Omni with Stream edges."""
    names = {"tiny": ("tiny_gateway", "tiny_pipeline"), "qwen3": ("qwen3_gateway", "qwen3_pipeline")}[request.param]
    gateway, pipeline = map(request.getfixturevalue, names)
    client = openai.OpenAI(base_url=f"{gateway}/v1", api_key="none", max_retries=0)
    return Served(client, pipeline.endpoint, step=int(request.param == "qwen3"))


@pytest.fixture(scope="module")
def direct(tiny_pipeline: RunningPipeline) -> GenerationResult:
    """The answer over gRPC, with which the tests compare."""
    with OmniClient(tiny_pipeline.endpoint) as grpc_client:
        return grpc_client.run(text=QUESTION, seed=3, voice="Ethan", sampling=LIMIT)


def ask(client: openai.OpenAI, form: str, *, stream: bool = False, **changed: Any) -> Any:
    asked: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTION}],
        "modalities": ["text", "audio"],
        "audio": {"voice": "alloy", "format": form},
        "seed": 3,
        "max_completion_tokens": 8,
    }
    return client.chat.completions.create(**{**asked, **changed}, stream=stream)


def decode(data: bytes) -> tuple[float, np.ndarray]:
    """Returns the length in seconds and the samples of an audio file, decoded by FFmpeg."""
    with av.open(io.BytesIO(data)) as file:
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        return len(samples) / (file.streams.audio[0].rate or 1), samples


def test_streamed_speech_is_that_of_grpc(served: Served) -> None:
    with OmniClient(served.endpoint) as grpc_client:
        direct = grpc_client.run(text=QUESTION, seed=3, voice="Ethan", sampling=LIMIT)
    pcm, transcript, usage = b"", "", None
    for chunk in ask(served.client, "pcm16", stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        choices = chunk.to_dict()["choices"]
        audio: Any = choices[0]["delta"].get("audio", {}) if choices else {}
        transcript += audio.get("transcript", "")
        pcm += base64.b64decode(audio.get("data", ""))
    served.check(pcm, direct.audio)
    assert transcript == direct.text
    assert usage.completion_tokens_details.audio_tokens == direct.finished["talker"].usage.completion_tokens > 0
    assert usage.completion_tokens_details.text_tokens == direct.finished["thinker"].usage.completion_tokens


def test_a_whole_answer_holds_a_wav_of_the_same_samples(client: openai.OpenAI, direct: GenerationResult) -> None:
    message = ask(client, "wav").choices[0].message
    assert message.content is None
    assert message.audio.transcript == direct.text
    seconds, samples = decode(base64.b64decode(message.audio.data))
    assert samples.astype("<i2").tobytes() == direct.audio
    assert seconds == pytest.approx(direct.audio_seconds)


@pytest.mark.parametrize("form", ["mp3", "opus", "flac", "aac"])
def test_encoded_speech_is_that_speech(client: openai.OpenAI, direct: GenerationResult, form: str) -> None:
    data = base64.b64decode(ask(client, form).choices[0].message.audio.data)
    seconds, samples = decode(data)
    assert seconds == pytest.approx(direct.audio_seconds, abs=0.1)
    assert data == encode_whole(form, direct.audio, 24_000, 1) or form == "opus"  # Ogg streams have a random number
    assert np.abs(samples.astype(np.float64)).max() > 0


@pytest.mark.parametrize("form", ["pcm", "mp3"])
def test_a_given_text_is_spoken(served: Served, form: str) -> None:
    with OmniClient(served.endpoint) as grpc_client:
        spoken = grpc_client.run(text="Read the text aloud.", reply="Good morning!", seed=4, voice="Chelsie")
    with served.client.audio.speech.with_streaming_response.create(
        model="tts-1", input="Good morning!", voice="Chelsie", response_format=form, extra_body={"seed": 4}
    ) as answer:
        data = b"".join(answer.iter_bytes())
        assert answer.headers["content-type"] == {"pcm": "audio/pcm", "mp3": "audio/mpeg"}[form]
    if form == "pcm":
        served.check(data, spoken.audio)
    else:
        assert decode(data)[0] == pytest.approx(spoken.audio_seconds, abs=0.1)


def test_speech_as_events_is_the_same_speech(client: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "input": "Good morning!", "voice": "alloy", "response_format": "pcm"}
    whole = client.audio.speech.create(**asked, extra_body={"seed": 4}).read()
    events = client.audio.speech.create(**asked, stream_format="sse", extra_body={"seed": 4}).read()
    parsed = [json.loads(line.removeprefix("data: ")) for line in events.decode().split("\n\n") if line]
    assert b"".join(base64.b64decode(one["audio"]) for one in parsed if one["type"] == "speech.audio.delta") == whole
    assert parsed[-1]["type"] == "speech.audio.done"
    assert parsed[-1]["usage"]["output_tokens"] > 0


@pytest.mark.parametrize("form", ["wav", "flac", "mp3", "opus"])
def test_audio_is_heard(client: openai.OpenAI, tiny_pipeline: RunningPipeline, form: str) -> None:
    speech = (Path(__file__).parents[3] / "cli/omni_cli/assets/speech.wav").read_bytes()
    _, samples = decode(speech)
    data = speech if form == "wav" else encode_whole(form, samples.astype("<i2").tobytes(), 16_000, 1)
    content: Any = [
        {"type": "text", "text": QUESTION},
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(data).decode(), "format": form}},
    ]
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], seed=3, max_completion_tokens=8
    )
    assert answer.usage.prompt_tokens > 40
    if form in ("wav", "flac"):
        with OmniClient(tiny_pipeline.endpoint) as grpc_client:
            heard = grpc_client.run(chat=user(QUESTION, audio_part(data)), seed=3, modalities=["text"], sampling=LIMIT)
        assert answer.choices[0].message.content == heard.text


def test_an_image_is_seen(client: openai.OpenAI, tiny_pipeline: RunningPipeline) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (112, 112), "red").save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    content: Any = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], seed=3, max_completion_tokens=8
    )
    chat = user(image_part(file.getvalue()), QUESTION)
    with OmniClient(tiny_pipeline.endpoint) as grpc_client:
        seen = grpc_client.run(chat=chat, seed=3, modalities=["text"], sampling=LIMIT)
    assert answer.choices[0].message.content == seen.text
    assert answer.usage.prompt_tokens == seen.finished["thinker"].usage.prompt_tokens


def test_a_video_is_seen_and_heard(served: Served) -> None:
    """vLLM's names for video input work: video_url and use_audio_in_video. Text and speech equal those over gRPC."""
    file = encode_video(width=14 * 32, height=10 * 32)
    url = f"data:video/mp4;base64,{base64.b64encode(file).decode()}"
    content: Any = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": QUESTION}]
    messages: Any = [{"role": "user", "content": content}]
    prompts = []
    for heard in (True, False):
        answer = ask(
            served.client, "pcm16", messages=messages, extra_body={"mm_processor_kwargs": {"use_audio_in_video": heard}}
        )
        with OmniClient(served.endpoint) as grpc_client:
            direct = grpc_client.run(
                chat=user(video_part(file), QUESTION), use_audio_in_video=heard, seed=3, voice="Ethan", sampling=LIMIT
            )
        message = answer.choices[0].message
        assert message.audio.transcript == direct.text
        served.check(base64.b64decode(message.audio.data), direct.audio)
        prompts.append(answer.usage.prompt_tokens)
    assert prompts[0] > prompts[1] > 2 * 140


def test_curl_gets_a_wav(tiny_gateway: str, tmp_path: Path) -> None:
    body = json.dumps({"model": MODEL, "input": "Good morning!", "response_format": "wav"})
    file = tmp_path / "speech.wav"
    command = ["curl", "-sSf", "-o", str(file), f"{tiny_gateway}/v1/audio/speech"]
    subprocess.run([*command, "-H", "content-type: application/json", "-d", body], check=True, timeout=120)
    seconds, samples = decode(file.read_bytes())
    assert seconds > 0.1
    assert np.abs(samples).max() > 100


BAD = [one for one in CORPUS if one.fate in (REFUSED, UNDECODABLE)]


def test_hostile_media_are_refused_by_name(client: openai.OpenAI, subtests: pytest.Subtests) -> None:
    for medium in BAD:
        data = base64.b64encode(medium.make()).decode()
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        audio = {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}
        video = {"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{data}"}}
        part = {"image": image, "audio": audio, "video": video}[medium.kind]
        messages: Any = [{"role": "user", "content": [part]}]
        with subtests.test(medium.name):
            with pytest.raises(openai.APIStatusError) as caught:
                client.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=1)
            assert caught.value.status_code in (400, 413)
            assert str(caught.value.param).startswith("messages")
            assert caught.value.code in ("invalid_media", "request_too_large")
