"""Answers and speech of real weights, judged by their meaning: facts in the text, and words that Whisper reads back.

The weights are those of `make demo`. Without them in the cache, the tests are skipped by name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import openai
import pytest
import yaml

from omni_cli.commands.demo import SPOKEN_PIPELINE
from omni_proto.client import AudioChunk, GenerationResult, OmniClient, ResultBuilder
from support.models.real_weights import (
    PARAGRAPHS,
    SENTENCES,
    count_misheard,
    count_word_errors,
    find_weights,
    read_wav,
    split_words,
    transcribe,
)
from support.peers.gateways import run_gateway
from support.peers.realtime_events import call
from support.processes.forked_pipelines import fork_pipeline
from support.processes.pipelines import RunningPipeline

pytestmark = [pytest.mark.pipeline, pytest.mark.timeout(900)]

MODEL = "spoken"
AT_ONCE = 8
FACTS = {
    "What is the capital of France?": "Paris",
    "What is the capital of Japan?": "Tokyo",
    "What is the capital of Germany?": "Berlin",
    "How many days are in a week?": "7",
}


CAPITAL = {
    "type": "object",
    "properties": {"country": {"type": "string"}, "capital": {"type": "string"}},
    "required": ["country", "capital"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["Stream", pytest.param("Full", marks=pytest.mark.full)])
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPipeline]:
    models = {"llm": find_weights("smollm2-135m-instruct"), "voice": find_weights("en-us-joe-medium")}
    folder = tmp_path_factory.mktemp("spoken")
    spec = yaml.safe_load(SPOKEN_PIPELINE.read_text())
    llm, voice = spec["spec"]["stages"]
    voice["inputs"][0]["mode"] = request.param
    # With a seed the voice cuts texts and sounds as on any machine. Without one, a busy stage cuts them shorter.
    for stage in (llm, voice):
        stage.setdefault("defaultSampling", {})["seed"] = 7
    file = folder / SPOKEN_PIPELINE.name
    file.write_text(yaml.safe_dump(spec))
    with fork_pipeline(file, models, folder) as running:
        yield running


@pytest.fixture(scope="module")
def gateway(spoken: RunningPipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """A client of a gateway process in front of the pipeline."""
    with run_gateway(tmp_path_factory.mktemp("gateway"), f"{MODEL}=grpc://{spoken.endpoint}") as running:
        yield openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0, timeout=600)


def ask(endpoint: str, text: str) -> GenerationResult:
    builder = ResultBuilder()
    with OmniClient(endpoint) as client:
        for event in client.generate(text=text, seed=0, timeout=600):
            builder.add(event)
    return builder.result()


def read_aloud(client: openai.OpenAI, text: str) -> tuple[np.ndarray, int]:
    """Returns the samples from -1 to 1, and their rate."""
    answer = client.audio.speech.create(model=MODEL, input=text, voice="joe", response_format="wav")
    return read_wav(answer.content)


def test_answers_are_right_and_spoken(spoken: RunningPipeline) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda question: ask(spoken.endpoint, question), FACTS))
    for answer, (question, fact) in zip(answers, FACTS.items(), strict=True):
        assert fact in answer.text, (question, answer.text)
        # A fifth of a second for each word, at least.
        assert answer.audio_seconds > 0.2 * len(answer.text.split())


def test_json_is_valid_and_right(gateway: openai.OpenAI) -> None:
    # So small a model needs an example: without one, it writes FRANCE.
    shown: list[Any] = [
        {"role": "user", "content": "Give Italy and its capital as JSON."},
        {"role": "assistant", "content": '{"country": "Italy", "capital": "Rome"}'},
    ]
    for country, capital in {"France": "Paris", "Japan": "Tokyo", "Germany": "Berlin"}.items():
        answer = gateway.chat.completions.create(
            model=MODEL,
            modalities=["text"],
            messages=[*shown, {"role": "user", "content": f"Give {country} and its capital as JSON."}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "capital", "schema": CAPITAL, "strict": True},
            },
        )
        assert json.loads(answer.choices[0].message.content or "") == {"country": country, "capital": capital}


@pytest.mark.full  # The end-to-end tests hear the same sentences from pods.
def test_whisper_reads_fifty_spoken_sentences_back(gateway: openai.OpenAI) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        spoken = list(pool.map(lambda text: read_aloud(gateway, text), PARAGRAPHS))
    assert count_misheard(spoken) <= 0.03


def test_words_end_where_the_voice_says(spoken: RunningPipeline) -> None:
    judge = find_weights("whisper-base")
    for text in ("There were 27 people in the room, and 1,250 outside.", *SENTENCES[:2]):
        with OmniClient(spoken.endpoint) as client:
            chunks = [
                one
                for one in client.generate(text="Read this.", reply=text, seed=0, timeout=600)
                if isinstance(one, AudioChunk)
            ]
        audio = np.frombuffer(b"".join(one.data for one in chunks), "<i2") / 32768
        # Several spoken words may be one written word, which has been said with the last of them.
        ends = {one.characters: one.end_sample for chunk in reversed(chunks) for one in reversed(chunk.spoken)}
        assert [text[:place].split()[-1] for place in sorted(ends) if place] == text.split()
        for place in sorted(ends)[len(ends) // 3 :: 2]:
            heard = transcribe(judge, audio[: ends[place]], chunks[0].sample_rate_hz)
            # A weak last word, such as "and", may be too short for a listener.
            assert count_word_errors(split_words(text[:place]), split_words(heard)) <= 1, (text[:place], heard)


async def test_a_cut_answer_keeps_the_words_that_were_heard(gateway: openai.OpenAI) -> None:
    judge = find_weights("whisper-base")
    async with call(str(gateway.base_url).removesuffix("/v1/"), model=MODEL) as caller:
        content = [{"type": "input_text", "text": "What is the capital of Japan?"}]
        await caller.connection.conversation.item.create(item={"type": "message", "role": "user", "content": content})
        await caller.connection.response.create()
        (item,) = (await caller.until("response.done"))["response"]["output"]
        deltas = [one["delta"] for one in caller.events if one["type"] == "response.output_audio.delta"]
        audio = np.frombuffer(b"".join(map(base64.b64decode, deltas)), "<i2") / 32768
        whole = item["content"][0]["transcript"]
        for end_ms in (1500, 1200, 900, 600):
            await caller.connection.conversation.item.truncate(item_id=item["id"], content_index=0, audio_end_ms=end_ms)
            await caller.until("conversation.item.truncated")
            await caller.connection.conversation.item.retrieve(item_id=item["id"])
            cut = (await caller.until("conversation.item.retrieved"))["item"]["content"][0]["transcript"]
            assert whole.startswith(cut)
            heard = split_words(transcribe(judge, audio[: 24 * end_ms], 24_000))
            # The next word may have begun, and be heard as a whole one that changes the word before it.
            assert count_word_errors(split_words(cut), heard) <= 2, (cut, heard)
