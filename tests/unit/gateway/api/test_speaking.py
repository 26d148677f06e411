"""A text of any length is spoken as one stream: parts in order, at most two in flight, and no words lost in silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest

from omni_gateway.api.speaking import AHEAD_BYTES, MAX_STARTS, SpeechStream
from omni_gateway.errors import GatewayError, InternalError, RateLimitError
from omni_proto.client import PCM_S16LE, Accepted, AudioChunk, Event, StageOutcome, Summary, Usage

RATE = 24_000
SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps. "


@dataclass
class Pipeline:
    """Speaks each letter as one token of `samples` equal samples, at most `limit` tokens of one request."""

    limit: int = 4096
    says_limit: bool = True
    samples: int = 240
    chunk_tokens: int = 50
    refuse: int = 0
    """How many requests after the first are refused as a full pipeline does."""
    fails_at: str = ""
    endless: bool = False
    """Whether each request is spoken until the limit."""
    asked: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    made: int = 0
    """Chunks of audio so far."""
    in_flight: int = 0
    most_in_flight: int = 0

    async def open(self, text: str) -> AsyncGenerator[Event, None]:
        await asyncio.sleep(0)
        if self.refuse and self.asked:
            self.refuse -= 1
            raise RateLimitError("full", retry_after_s=0.001)
        self.asked.append(text)
        return self._speak(text)

    async def _speak(self, text: str) -> AsyncGenerator[Event, None]:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            yield Accepted("thinker", "r1", 1, 2048)
            yield Accepted("talker", "r1", 1, self.limit if self.says_limit else 0)
            tokens = self.limit if self.endless else min(self.limit, len(text))
            for begin in range(0, tokens, self.chunk_tokens):
                await asyncio.sleep(0)
                if self.fails_at and self.fails_at in text:
                    raise InternalError("the engine died")
                count = min(self.chunk_tokens, tokens - begin) * self.samples
                self.made += 1
                yield AudioChunk("token2wav", b"\1\0" * count, PCM_S16LE, RATE, 1, begin * self.samples, False)
            cut = self.endless or len(text) > self.limit
            yield Summary(
                "thinker",
                "r1",
                (
                    StageOutcome("thinker", "stop", Usage(10, len(text)), 0),
                    StageOutcome("talker", "length" if cut else "stop", Usage(10, tokens), 0),
                ),
                1,
            )
        finally:
            self.in_flight -= 1
            self.ended.append(text)

    async def speak(self, text: str) -> tuple[SpeechStream, list[AudioChunk]]:
        speech = SpeechStream(text, self.open, patience_s=5)
        await speech.begin(accepted=False)
        chunks = [chunk async for chunk in speech.chunks()]
        return speech, chunks


def seconds(chunks: list[AudioChunk]) -> float:
    return sum(len(chunk.data) for chunk in chunks) / (2 * RATE)


async def test_a_short_text_is_one_request_as_it_is_written() -> None:
    pipeline = Pipeline()
    speech, chunks = await pipeline.speak(" Good morning!\n")
    assert pipeline.asked == [" Good morning!\n"]
    assert b"".join(chunk.data for chunk in chunks) == b"\1\0" * (15 * 240)
    assert (speech.cut_stages, len(speech.summaries)) == ((), 1)


async def test_4096_characters_are_spoken_whole() -> None:
    pipeline = Pipeline()
    text = (SENTENCE * 64)[:4096]
    speech, chunks = await pipeline.speak(text)
    assert "".join(" ".join(pipeline.asked).split()) == "".join(text.split())
    assert len(pipeline.asked) > 8
    assert speech.cut_stages == ()
    assert pipeline.most_in_flight == 2
    assert pipeline.in_flight == 0
    audio = sum(len(part) for part in pipeline.asked) * 240 / RATE
    pauses = 0.2 * (len(pipeline.asked) - 1)
    assert seconds(chunks) == pytest.approx(audio + pauses, abs=0.01)


async def test_a_low_limit_makes_shorter_parts_before_anything_is_sent() -> None:
    pipeline = Pipeline(limit=64)
    text = SENTENCE * 20
    speech, chunks = await pipeline.speak(text)
    assert speech.cut_stages == ()
    first, *rest = pipeline.asked
    assert len(first) > 64, "the first try did not know the limit"
    assert all(len(part) <= 64 for part in rest)
    assert "".join("".join(rest).split()) == "".join(text.split())
    audio = sum(len(part) for part in rest) * 240 / RATE
    assert audio < seconds(chunks) < audio + 0.2 * len(rest)


async def test_a_part_that_is_cut_before_it_is_sent_is_spoken_again_in_shorter_ones() -> None:
    # Twelve letters need more than the twelve tokens that even the shortest parts may use.
    pipeline = Pipeline(limit=9)
    speech, _ = await pipeline.speak("one two three four five six seven")
    assert speech.cut_stages == ()
    lengths = [summary.stages[0].usage.completion_tokens for summary in speech.summaries]
    assert lengths == [len(part) for part in ("one two", "three", "four", "five six", "seven")]


@pytest.mark.parametrize("says_limit", [True, False])
async def test_a_talker_that_makes_almost_nothing_is_asked_a_bounded_number_of_times(says_limit: bool) -> None:
    pipeline = Pipeline(limit=2, says_limit=says_limit)
    speech, _ = await pipeline.speak((SENTENCE * 1000)[:16_384])
    assert len(pipeline.asked) <= MAX_STARTS
    assert speech.cut_stages == ("talker",), "words are missing, and the answer says so"


@pytest.mark.parametrize("text", ["Yes.", "Good morning!", SENTENCE * 3])
async def test_speech_that_does_not_end_is_spoken_to_the_last_word_and_marked(text: str) -> None:
    pipeline = Pipeline(limit=64, endless=True)
    speech, chunks = await pipeline.speak(text)
    assert speech.cut_stages == ("talker",)
    assert len(speech.summaries) == len(text.split())
    assert seconds(chunks) >= len(text.split()) * 64 * 240 / RATE


async def test_a_part_of_which_audio_was_sent_is_marked_and_the_next_is_spoken() -> None:
    pipeline = Pipeline(limit=300, says_limit=False, samples=2400)
    text = SENTENCE * 20
    speech, _ = await pipeline.speak(text)
    assert speech.cut_stages == ("talker",)
    assert len(speech.summaries) == len(pipeline.asked)
    assert "".join("".join(pipeline.asked).split()) == "".join(text.split())


async def test_usage_of_all_parts_is_kept() -> None:
    pipeline = Pipeline()
    speech, _ = await pipeline.speak(SENTENCE * 30)
    tokens = sum(summary.stages[1].usage.completion_tokens for summary in speech.summaries)
    assert tokens == sum(map(len, pipeline.asked))


async def test_a_full_pipeline_is_asked_again_for_later_parts() -> None:
    pipeline = Pipeline(refuse=3)
    await pipeline.speak(SENTENCE * 30)
    assert pipeline.refuse == 0
    assert "".join("".join(pipeline.asked).split()) == "".join((SENTENCE * 30).split())


async def test_a_failure_ends_the_stream_after_the_audio_before_it() -> None:
    pipeline = Pipeline(fails_at="Zebra")
    speech = SpeechStream(SENTENCE * 30 + "Zebra.", pipeline.open, patience_s=5)
    await speech.begin(accepted=False)
    chunks: list[AudioChunk] = []

    async def read() -> None:
        async for chunk in speech.chunks():
            chunks.append(chunk)

    with pytest.raises(GatewayError, match="engine died"):
        await read()
    assert seconds(chunks) > 10
    assert pipeline.in_flight == 0


async def test_a_failure_before_the_first_audio_is_raised_at_once() -> None:
    pipeline = Pipeline(fails_at="quick")
    speech = SpeechStream(SENTENCE * 30, pipeline.open, patience_s=5)
    with pytest.raises(GatewayError, match="engine died"):
        await speech.begin(accepted=False)
    assert pipeline.in_flight == 0


@pytest.mark.parametrize("read", [0, 1, 30])
async def test_a_disconnect_cancels_all_parts_in_flight(read: int) -> None:
    pipeline = Pipeline()
    speech = SpeechStream(SENTENCE * 60, pipeline.open, patience_s=5)
    await speech.begin(accepted=True)
    chunks = speech.chunks()
    for _ in range(read):
        await anext(chunks)
    await chunks.aclose()
    await speech.close()
    assert pipeline.in_flight == 0
    assert len(pipeline.ended) == len(pipeline.asked) <= 3 + read // 4


async def test_a_client_that_reads_nothing_holds_little_audio() -> None:
    pipeline = Pipeline(samples=24_000)
    speech = SpeechStream(SENTENCE * 60, pipeline.open, patience_s=5)
    await speech.begin(accepted=False)
    chunks = speech.chunks()
    await anext(chunks)
    for _ in range(1000):
        await asyncio.sleep(0)
    # A chunk here is larger than what may wait: one was taken, and one of each part waits.
    assert AHEAD_BYTES < 50 * 48_000
    assert pipeline.made == 3
    assert pipeline.in_flight == 2
    await chunks.aclose()
    assert pipeline.in_flight == 0


async def test_text_without_words_still_ends() -> None:
    speech, _ = await Pipeline().speak("..." + "\n" * 3000 + "!")
    assert speech.summaries
