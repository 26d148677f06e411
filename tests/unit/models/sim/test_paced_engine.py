"""Engines that simulate a GPU's pace, on an event loop: their outputs, and that ended requests leave nothing behind."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omni_proto.stage_config import DownstreamStage, Modality, ModelSource, SamplingDefaults, StageConfig
from omni_stage.engine.factory import build_stage_engine, needs_vllm
from omni_stage.errors import ConfigurationError, InvalidRequestError, ModelExecutionError, PromptTooLongError
from omni_stage.exchange import fits
from omni_stage.models.component import (
    ChatMessage,
    EdgeInput,
    EdgeStream,
    FinishReason,
    StageRequest,
    StageStep,
    TextPart,
    UserPrompt,
)
from omni_stage.models.sim.content import END_OF_TEXT
from support.stages.fast_table import write_fast_table

WORDS = UserPrompt(text="How are you today?")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fast_table(tmp_path_factory.mktemp("table"), replyTokens=[12, 12])


@pytest.fixture(scope="module")
def codebooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fast_table(tmp_path_factory.mktemp("codebooks"), "qwen3-omni-30b-a3b-h100")


def config(stage: str, path: Path, **settings: Any) -> StageConfig:
    below = DownstreamStage(
        stage="talker", target="x", component="sim/talker", stages=["talker"], outputs=[Modality.AUDIO]
    )
    given: dict[str, Any] = {"downstream": [below]} if stage == "thinker" else {"input": {"source": "above"}}
    return StageConfig(
        pipeline="test",
        stage=stage,
        component=f"sim/{stage}",
        model=ModelSource(path=str(path)),
        **{**given, **settings},
    )


def engine(stage: str, path: Path, **settings: Any) -> Any:
    return build_stage_engine(config(stage, path, **settings))


def ask(source: Any = WORDS, name: str = "a", *, rows: bool = True, **sampling: Any) -> StageRequest:
    return StageRequest(name, source, SamplingDefaults(**{"seed": 7, **sampling}), want_tensors=rows)


async def collect(steps: AsyncIterator[StageStep]) -> list[StageStep]:
    return [step async for step in steps]


def joined(steps: list[StageStep], name: str) -> np.ndarray:
    return np.concatenate([step.tensors[name] for step in steps if name in step.tensors])


def tokens(steps: list[StageStep]) -> list[int]:
    return [token for step in steps for token in step.token_ids]


async def test_a_thinker_writes_words_and_the_rows_of_every_position_but_the_last(table: Path) -> None:
    thinker = engine("thinker", table)
    steps = await collect(thinker.generate(ask()))
    prompt = steps[0].prompt_token_ids
    assert len(prompt) == 5
    assert len(tokens(steps)) == 13
    assert tokens(steps)[-1] == END_OF_TEXT
    assert len("".join(step.text for step in steps).split()) == 12
    assert steps[-1].finish_reason is FinishReason.STOP
    rows = joined(steps, "x")
    assert rows.shape == (5 + 12, 3584)
    assert joined(steps, "token_ids").tolist() == [*prompt, *tokens(steps)[:-1]]
    assert joined(steps, "mrope_positions").tolist() == [[at] * 3 for at in range(5)]
    schema = {spec.name: spec for spec in thinker.component.output_schema.tensors}
    assert all(fits(array, schema[name]) for step in steps for name, array in step.tensors.items())
    # A bfloat16 whose exponent bits are all set is infinite or NaN.
    assert ((rows & 0x7F80) != 0x7F80).all()


async def test_ids_travel_alone_where_the_table_has_no_rows(codebooks: Path) -> None:
    """As on Qwen3-Omni's edge, token ids are sent without hidden rows. Speech is still as long as the text requires."""
    thinker, talker = engine("thinker", codebooks), engine("talker", codebooks)
    steps = await collect(thinker.generate(ask()))
    assert {name for step in steps for name in step.tensors} == {"token_ids", "mrope_positions", "mrope_delta"}
    sent = {name: joined(steps, name) for name in ("token_ids", "mrope_positions", "mrope_delta")}
    assert sent["token_ids"].tolist() == [*steps[0].prompt_token_ids, *tokens(steps)[:-1]]
    assert {spec.name for spec in thinker.component.output_schema.tensors} == sent.keys()
    spoken = await collect(talker.generate(ask(EdgeInput(sent))))
    # 12.5 frames a second, 0.13333 s of speech per text token, and the end of speech.
    assert len(tokens(spoken)) == math.ceil((len(tokens(steps)) - 1) * 0.13333 * 12.5) + 1


async def test_a_seed_gives_the_same_text_beside_any_other_requests(table: Path) -> None:
    """A seed gives the same reply, whatever other requests run."""
    thinker = engine("thinker", table)
    alone = await collect(thinker.generate(ask()))
    together = await asyncio.gather(
        *(collect(thinker.generate(ask(name=f"{number}", seed=number))) for number in range(12))
    )
    assert tokens(together[7]) == tokens(alone)
    assert len({tuple(tokens(steps)) for steps in together}) == 12


@pytest.mark.parametrize(
    ("sampling", "count", "reason"),
    [
        ({"max_tokens": 4}, 4, FinishReason.LENGTH),
        ({"max_tokens": 30, "ignore_eos": True}, 30, FinishReason.LENGTH),
        ({"min_tokens": 20}, 21, FinishReason.STOP),
    ],
)
async def test_the_length_of_a_reply_follows_the_sampling(
    table: Path, sampling: dict[str, Any], count: int, reason: FinishReason
) -> None:
    steps = await collect(engine("thinker", table).generate(ask(**sampling)))
    assert (len(tokens(steps)), steps[-1].finish_reason) == (count, reason)


async def test_a_stop_token_ends_the_text(table: Path) -> None:
    thinker = engine("thinker", table)
    said = tokens(await collect(thinker.generate(ask())))
    at = next(index for index, token in enumerate(said) if index and token not in said[:index])
    steps = await collect(thinker.generate(ask(name="b", stop_token_ids=[said[at]])))
    assert tokens(steps) == said[: at + 1]
    assert (steps[-1].finish_reason, steps[-1].stop_reason) == (FinishReason.STOP, str(said[at]))


async def test_a_chat_costs_its_messages(table: Path) -> None:
    chat = UserPrompt(messages=[ChatMessage("user", [TextPart("a" * 40)]), ChatMessage("assistant", [TextPart("b")])])
    steps = await collect(engine("thinker", table).generate(ask(chat)))
    assert len(steps[0].prompt_token_ids or ()) == 10 + 1 + 2 * 5


async def test_a_prompt_that_does_not_fit_is_refused(table: Path) -> None:
    thinker = engine("thinker", table, engine_args={"maxModelLen": 16})
    with pytest.raises(PromptTooLongError, match="at most 15"):
        await collect(thinker.generate(ask(UserPrompt(token_ids=[1] * 16))))
    assert thinker.unfinished_requests == 0


def thinkers_rows(prompt: int, text: int) -> dict[str, np.ndarray]:
    return {
        "x": np.zeros((prompt + text, 3584), np.uint16),
        "token_ids": np.zeros(prompt + text, np.int64),
        "mrope_positions": np.zeros((prompt, 3), np.int64),
        "mrope_delta": np.zeros(1, np.int64),
    }


async def test_a_talker_speaks_as_long_as_the_text_takes_whole_or_streamed(table: Path) -> None:
    talker = engine("talker", table, input={"source": "thinker", "mode": "Stream"})
    whole = await collect(talker.generate(ask(EdgeInput(thinkers_rows(4, 15)))))
    # 50 frames a second, 0.13333 s of speech per text token, and the end of speech.
    assert len(tokens(whole)) == 100 + 1
    assert joined(whole, "codes").shape == (100,)
    assert len(whole[0].prompt_token_ids or ()) == 4 + 2

    stream = EdgeStream()
    task = asyncio.create_task(collect(talker.generate(ask(stream, "b"))))
    first = thinkers_rows(4, 1)
    stream.put(first, ["mrope_positions", "mrope_delta"])
    for _ in range(14):
        await asyncio.sleep(0.002)
        stream.put({name: first[name][:1] for name in ("x", "token_ids")})
    stream.end()
    streamed = await task
    assert tokens(streamed) == tokens(whole)
    assert streamed[-1].finish_reason is FinishReason.STOP


async def test_a_talker_waits_for_the_rows_of_its_frames(table: Path) -> None:
    talker = engine("talker", table, input={"source": "thinker", "mode": "Stream"})
    stream = EdgeStream()
    rows = thinkers_rows(4, 3)
    stream.put(rows, ["mrope_positions", "mrope_delta"])
    steps = talker.generate(ask(stream))
    async with aclosing(steps):
        count = 0
        while count < 3:
            count += len((await anext(steps)).token_ids)
        assert count == 3
        assert talker.unfinished_requests == 0
        stream.put({"x": rows["x"][:1], "token_ids": rows["token_ids"][:1]})
        assert len((await anext(steps)).token_ids) == 1
    assert talker.unfinished_requests == 0


async def test_a_talker_refuses_rows_without_a_prompt_and_speaks_no_empty_text(table: Path) -> None:
    talker, stream = engine("talker", table, input={"source": "thinker", "mode": "Stream"}), EdgeStream()
    with pytest.raises(InvalidRequestError, match="mrope_positions"):
        await collect(talker.generate(ask(EdgeInput(thinkers_rows(0, 3)))))
    steps = await collect(talker.generate(ask(EdgeInput(thinkers_rows(4, 0)), "b")))
    # The stream ends after the prompt's rows. A talker that kept reading in a loop would block the event loop.
    stream.put(thinkers_rows(4, 0), ["mrope_positions", "mrope_delta"])
    stream.end()
    steps += await collect(talker.generate(ask(stream, "c")))
    assert [step.finish_reason for step in steps] == [FinishReason.EMPTY_INPUT] * 2


async def test_a_frame_has_as_many_codes_as_the_table_says(codebooks: Path) -> None:
    talker = engine("talker", codebooks)
    steps = await collect(talker.generate(ask(EdgeInput(thinkers_rows(4, 6)), max_tokens=8)))
    assert joined(steps, "codes").shape == (8, 16)
    (spec,) = talker.component.output_schema.tensors
    assert spec.row_shape == (16,)


async def test_a_decoder_makes_every_sample_once_whole_or_in_windows(table: Path) -> None:
    decoder = engine("decoder", table)
    (whole,) = await collect(decoder.generate(ask(EdgeInput({"codes": np.zeros(130, np.int64)}))))
    assert whole.finish_reason is FinishReason.STOP
    assert whole.audio.shape == (130 * 480,)
    assert whole.audio.dtype == np.float32
    assert np.abs(whole.audio).max() <= 1

    stream = EdgeStream()
    task = asyncio.create_task(collect(decoder.generate(ask(stream, "b"))))
    for count in (30, 50, 50):
        stream.put({"codes": np.zeros(count, np.int64)})
        await asyncio.sleep(0.005)
    stream.end()
    steps = await task
    audios = [step.audio for step in steps if step.audio is not None]
    assert len(audios[0]) == 12 * 480
    assert np.array_equal(np.concatenate(audios), whole.audio)
    assert steps[-1].finish_reason is FinishReason.STOP
    assert decoder.unfinished_requests == 0


async def test_a_window_that_ends_with_the_frames_ends_the_audio_once(table: Path) -> None:
    """If the stream ends after its last window, one further step ends the audio."""
    decoder, stream = engine("decoder", table), EdgeStream()
    steps = decoder.generate(ask(stream))
    stream.put({"codes": np.zeros(24, np.int64)})
    assert (await anext(steps)).finish_reason is None
    stream.end()
    rest = await collect(steps)
    assert [step.finish_reason for step in rest] == [FinishReason.STOP]


async def test_no_frames_are_no_audio(table: Path) -> None:
    (stream := EdgeStream()).end()
    for source in (EdgeInput({"codes": np.zeros(0, np.int64)}), stream):
        (step,) = await collect(engine("decoder", table).generate(ask(source)))
        assert (step.audio, step.finish_reason) == (None, FinishReason.EMPTY_INPUT)


async def test_a_closed_request_leaves_nothing_and_an_aborted_one_fails(table: Path) -> None:
    for stage, source in (("thinker", WORDS), ("talker", EdgeInput(thinkers_rows(4, 400)))):
        one = engine(stage, table)
        async with aclosing(one.generate(ask(source, ignore_eos=True, max_tokens=3000))) as steps:
            await anext(steps)
            assert one.unfinished_requests == 1
        assert one.unfinished_requests == 0
        async with aclosing(one.generate(ask(source, "b", ignore_eos=True, max_tokens=3000))) as steps:
            await anext(steps)
            await one.abort("b")
            with pytest.raises(ModelExecutionError, match="aborted"):
                await collect(steps)
        await one.abort("nobody")
        assert one.unfinished_requests == 0
        await one.shutdown()


async def test_wrong_rows_that_stream_fail_the_request(table: Path) -> None:
    talker, stream = engine("talker", table, input={"source": "thinker", "mode": "Stream"}), EdgeStream()
    stream.put({"x": np.zeros((1, 3584), np.uint16)})
    stream.end()
    with pytest.raises(InvalidRequestError, match="mrope_positions"):
        await collect(talker.generate(ask(stream)))


def test_only_simulated_components_need_no_vllm(table: Path) -> None:
    assert not needs_vllm(config("decoder", table))
    assert needs_vllm(config("decoder", table).model_copy(update={"component": "generic/llm"}))


def test_a_cache_smaller_than_the_longest_request_is_refused(table: Path) -> None:
    with pytest.raises(ConfigurationError, match="maxModelLen 8192"):
        engine("thinker", table, engine_args={"maxModelLen": 8192, "kvCacheMemoryMib": 100})
    streamed = engine("talker", table, engine_args={"maxModelLen": 8192, "kvCacheMemoryMib": 1000})
    assert streamed._sessions.queue.room.blocks == 1000 * (1 << 20) // 49_152


@pytest.mark.parametrize("on", [True, False])
async def test_thinker_and_talker_reuse_the_earlier_turns_of_their_tenant(table: Path, on: bool) -> None:
    arguments = {"engine_args": {"enablePrefixCaching": True}} if on else {}
    thinker, talker = engine("thinker", table, **arguments), engine("talker", table, **arguments)

    async def turn(words: str, salt: str, reply: int) -> tuple[int, int]:
        request = replace(ask(UserPrompt(text=words)), cache_salt=salt)
        heard = await collect(thinker.generate(request))
        sent = {name: joined(heard, name) for name in ("x", "token_ids", "mrope_positions", "mrope_delta")}
        spoken = await collect(talker.generate(replace(ask(EdgeInput(sent), max_tokens=reply), cache_salt=salt)))
        return sum(step.cached_tokens for step in heard), sum(step.cached_tokens for step in spoken)

    words = "What is new? " * 20
    assert await turn(words, "", 2) == (0, 0)
    assert await turn(words + "And now?", "", 3) == ((64, 64) if on else (0, 0))
    assert await turn(words, "another tenant", 3) == (0, 0)
