"""The component voice/vits without an engine: parts of a text, seeds, voices, limits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.streamed import read_part_in_time
from omni_stage.errors import ConfigurationError, InvalidRequestError, InvalidTensorError, ModelExecutionError
from omni_stage.models.component import (
    EdgeInput,
    EdgeRows,
    EdgeStream,
    EngineInput,
    EngineStep,
    FinishReason,
    SpokenText,
    StageRequest,
    UserPrompt,
)
from omni_stage.models.voice.checkpoint import open_reader, read_checkpoint
from omni_stage.models.voice.component import SentenceFeed, SpokenPart, VitsVoice
from omni_stage.models.voice.tiny import write_tiny_checkpoint
from omni_stage.vllm_adapter.scheduling.playback import Playback

TEXT = "The first sentence is here. 21 is a number, and *this* is not shouted. The end"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("voice"), 0, "speakers")


@pytest.fixture(scope="module")
def voice(folder: Path) -> VitsVoice:
    checkpoint = read_checkpoint(folder)
    return VitsVoice(checkpoint, open_reader(checkpoint))


def rows(text: str) -> dict[str, torch.Tensor]:
    return {"utf8": torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)} if text else {}


def ask(text: str, *, voice: str = "", seed: int | None = 3) -> StageRequest:
    return StageRequest("id", EdgeInput(rows(text)), SamplingDefaults(seed=seed), voice=voice)


def values(prepared: EngineInput, name: str) -> list[object]:
    assert prepared.additional_information is not None
    return list(prepared.additional_information.list(name))


def ids(prepared: EngineInput) -> list[int]:
    assert prepared.additional_information is not None
    found: list[int] = prepared.additional_information.tensor("ids").tolist()
    return found


def words(prepared: EngineInput) -> list[int]:
    """Returns for each word how many characters of the text have been said."""
    assert prepared.additional_information is not None
    found: list[int] = prepared.additional_information.tensor("words")[1].tolist()
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_parts_together_are_the_whole_text_however_it_arrives(voice: VitsVoice, size: int) -> None:
    whole = voice.prepare(ask(TEXT))
    feed = voice.open_feed(StageRequest("id", EdgeStream(), SamplingDefaults(seed=3)))
    parts = []
    for begin in range(0, len(TEXT), size):
        feed.add(EdgeRows(rows(TEXT[begin : begin + size])))
        while (part := feed.next_part()) is not None:
            parts.append(part)
    assert parts or size == 1000
    feed.add(EdgeRows(ended=True))
    while not (part := feed.next_part()).last:  # type: ignore[union-attr]  # the text has ended
        parts.append(part)
    assert part is not None
    assert part.input.finished is FinishReason.STOP
    assert [symbol for item in parts for symbol in ids(item.input)] == ids(whole)
    assert [word for item in parts for word in words(item.input)] == words(whole)
    assert [TEXT[:place].split()[-1] for place in words(whole)[3:7]] == ["is", "here.", "here.", "21"]
    firsts = [int(str(values(item.input, "first")[0])) for item in parts]
    counts = [len(values(item.input, "lengths")) for item in parts]
    assert firsts == [sum(counts[:index]) for index in range(len(counts))]


def test_a_request_has_its_seed_its_speaker_and_a_token_for_each_symbol(voice: VitsVoice) -> None:
    prepared = voice.prepare(ask("Hello.", voice="BO"))
    assert (values(prepared, "seed"), values(prepared, "speaker")) == ([3], [1])
    assert len(prepared.prompt["prompt_token_ids"]) == len(ids(prepared))
    unseeded = {str(values(voice.prepare(ask("Hello.", seed=None)), "seed")) for _ in range(4)}
    assert len(unseeded) == 4
    with pytest.raises(InvalidRequestError, match="ada, bo, cy"):
        voice.prepare(ask("Hello.", voice="dora"))


@pytest.mark.parametrize("text", ["", "  \n", "...", "😀"])
def test_nothing_to_say_ends_as_empty_input(voice: VitsVoice, text: str) -> None:
    assert voice.prepare(ask(text)).finished is FinishReason.EMPTY_INPUT
    feed = voice.open_feed(ask(text))
    feed.add(EdgeRows(rows(text), ended=True))
    part = feed.next_part()
    assert part is not None
    assert (part.last, part.input.finished) == (True, FinishReason.EMPTY_INPUT)


def spoken_text(voice: VitsVoice, text: str) -> list[int]:
    spoken = SpokenPart()
    voice.read_part(text, spoken)
    return [symbol for utterance in spoken.utterances for symbol in utterance.ids]


async def test_parts_are_cut_for_a_listener_who_runs_dry(voice: VitsVoice) -> None:
    first = "The harbour was quiet that night, "
    second = "the boats lay still in the dark water, and nobody heard the bell. "
    rest = "Then at midnight it rang once more, and everybody woke at once."

    def feed_of(text: str) -> tuple[EdgeStream, SentenceFeed]:
        stream, feed = EdgeStream(), voice.open_feed(ask(text))
        stream.put(rows(text))
        return stream, feed

    async def next_part(left_s: float, stream: EdgeStream, feed: SentenceFeed) -> list[int]:
        part = await read_part_in_time(stream, feed, Playback(left_s), 0.25, clock=lambda: 0.0)
        return ids(part.input)

    stream, feed = feed_of(first + second + rest)
    assert await next_part(60, stream, feed) == spoken_text(voice, first), "the first clause is early anyway"
    assert await next_part(60, stream, feed) == spoken_text(voice, second), "there is time for the sentence"
    assert await next_part(-9, stream, feed) == spoken_text(voice, "Then at midnight it rang once more, ")
    stream.end()
    assert await next_part(-9, stream, feed) == spoken_text(voice, "and everybody woke at once.")
    stream, feed = feed_of(first + second + "It")
    await next_part(60, stream, feed)
    assert await next_part(0.9, stream, feed) == spoken_text(voice, "the boats lay still in the dark water, ")
    assert await next_part(60, stream, feed) == spoken_text(voice, "and nobody heard the bell.")


def test_texts_that_are_too_long_and_prompts_are_refused(folder: Path, voice: VitsVoice) -> None:
    checkpoint = read_checkpoint(folder)
    small = VitsVoice(checkpoint, open_reader(checkpoint), max_ids=64)
    with pytest.raises(InvalidTensorError, match="at most 64 fit one request"):
        small.prepare(ask("word " * 40))
    with pytest.raises(InvalidRequestError, match="reads another stage's text"):
        voice.prepare(StageRequest("id", UserPrompt(text="Hello."), SamplingDefaults()))
    with pytest.raises(InvalidTensorError, match="not UTF-8"):
        voice.prepare(
            StageRequest("id", EdgeInput({"utf8": torch.tensor([255], dtype=torch.uint8)}), SamplingDefaults())
        )


def test_facts_are_those_of_the_checkpoint(voice: VitsVoice) -> None:
    assert voice.facts.sample_rate_hz == 16_000
    assert tuple(voice.voices) == ("ada", "bo", "cy")
    assert voice.prepare(voice.warmup_request()).finished is None


def test_audio_must_be_float32_samples(voice: VitsVoice) -> None:
    emitter = voice.emitter(ask("a"), voice.prepare(ask("a")))
    audio = torch.zeros(7)
    assert emitter.emit(EngineStep(tensors={"output": audio})).audio is audio
    step = emitter.emit(EngineStep(tensors={"output": audio, "words": torch.tensor([[3, 7], [1, 4]])}))
    assert list(step.spoken) == [SpokenText(3, 1), SpokenText(7, 4)]
    for broken in ({}, {"output": torch.zeros(2, 2)}, {"output": torch.zeros(2, dtype=torch.float64)}):
        with pytest.raises(ModelExecutionError, match="without audio"):
            emitter.emit(EngineStep(tensors=broken))


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "cannot read"),
        ({"config.json": '{"model_type": "llama"}'}, "holds no voice"),
        ({"config.json": '{"model_type": "vits", "sampling_rate": 1}'}, "sample rate must be from 4000"),
        ({"a.onnx": "", "b.onnx": ""}, "needs a folder of its own"),
        ({"a.onnx": ""}, "cannot read .*a.onnx.json"),
        ({"a.onnx": "", "a.onnx.json": "{}"}, "inference is missing"),
    ],
)
def test_folders_without_a_voice_are_refused(tmp_path: Path, files: dict[str, str], words: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=words):
        read_checkpoint(tmp_path)
