"""Speech that a stage ended at its maximum length says so, in chats, events, bytes and metrics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from omni_gateway.entries.pipelines import ServedPipeline
from omni_proto.text import split_parts
from support.peers.answering_entry import CUT_SEED, PCM, serve_entry
from support.peers.gateways import serve_gateway
from support.processes.polling import PATIENCE_S

WHOLE_SEED = 1
FORMATS = ["wav", "pcm", "mp3", "opus", "flac", "aac"]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with (
        serve_entry() as (port, _),
        serve_gateway(ServedPipeline("words", f"grpc://127.0.0.1:{port}")) as url,
        httpx.Client(base_url=url, timeout=PATIENCE_S) as client,
    ):
        yield client


def count_cut(client: httpx.Client, route: str) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    wanted = {"route": route, "stage": "talker"}
    return sum(one.value for one in samples if one.name == "omni_gateway_cut_answers_total" and one.labels == wanted)


def ask(client: httpx.Client, seed: int, **changed: Any) -> Any:
    body = {
        "model": "words",
        "messages": [{"role": "user", "content": "Hi"}],
        "modalities": ["text", "audio"],
        "audio": {"format": "pcm16"},
        "seed": seed,
    }
    return client.post("/v1/chat/completions", json={**body, **changed})


@pytest.mark.parametrize(("seed", "reason"), [(WHOLE_SEED, "stop"), (CUT_SEED, "length")])
def test_finish_reason_of_a_chat(client: httpx.Client, seed: int, reason: str) -> None:
    before = count_cut(client, "/v1/chat/completions")
    whole = ask(client, seed).json()
    assert whole["choices"][0]["finish_reason"] == reason
    lines = ask(client, seed, stream=True).text.split("\n\n")
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    reasons = [one["choices"][0]["finish_reason"] for one in chunks if one["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + [reason]
    assert lines[-2] == "data: [DONE]"
    assert count_cut(client, "/v1/chat/completions") - before == (2 if reason == "length" else 0)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("seed", "reason"), [(WHOLE_SEED, "stop"), (CUT_SEED, "length")])
def test_finish_reason_of_speech_events(client: httpx.Client, form: str, seed: int, reason: str) -> None:
    body = {"model": "words", "input": "Hi", "seed": seed, "response_format": form, "stream_format": "sse"}
    lines = client.post("/v1/audio/speech", json=body).text.split("\n\n")
    done = json.loads(lines[-2].removeprefix("data: "))
    assert (done["type"], done["finish_reason"]) == ("speech.audio.done", reason)


@pytest.mark.parametrize("form", FORMATS)
def test_cut_speech_bytes_end_as_a_broken_transfer_after_all_audio(client: httpx.Client, form: str) -> None:
    body = {"model": "words", "input": "Hi", "seed": WHOLE_SEED, "response_format": form}
    complete = client.post("/v1/audio/speech", json=body).content
    before = count_cut(client, "/v1/audio/speech")
    received = bytearray()

    def read() -> None:
        with client.stream("POST", "/v1/audio/speech", json={**body, "seed": CUT_SEED}) as answer:
            assert answer.status_code == 200
            for piece in answer.iter_bytes():
                received.extend(piece)

    with pytest.raises(httpx.RemoteProtocolError):
        read()
    assert len(received) == len(complete)
    if form == "pcm":
        assert bytes(received) == PCM
    assert count_cut(client, "/v1/audio/speech") - before == 1
    assert 'omni_gateway_broken_answers_total{code="speech_cut"}' in client.get("/metrics").text


def test_the_model_says_that_its_weights_are_random(client: httpx.Client) -> None:
    assert client.get("/v1/models/words").json()["random_weights"] is True


@pytest.mark.parametrize("form", FORMATS)
def test_a_long_text_is_one_file(client: httpx.Client, form: str) -> None:
    body: dict[str, Any] = {
        "model": "words",
        "input": "The fox sleeps. " * 256,
        "seed": WHOLE_SEED,
        "response_format": form,
    }
    data = client.post("/v1/audio/speech", json=body).content
    mark = {"wav": b"RIFF", "flac": b"fLaC", "opus": b"OpusHead"}.get(form)
    if mark is not None:
        assert data.count(mark) == 1
    if form == "pcm":
        parts = len(split_parts(body["input"]))
        assert parts > 8
        assert len(data) == parts * len(PCM) + (parts - 1) * round(0.2 * 24_000) * 2
