"""asr/whisper on vLLM with a tiny random checkpoint: token for token what transformers writes, also in a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import InvalidRequestError
from omni_stage.exchange import FinishReason
from omni_stage.models.asr.tiny import write_tiny_checkpoint
from omni_stage.models.asr.windows import WINDOW_S, WindowReader
from omni_stage.models.component import AudioPart, ChatMessage, StageRequest, TextPart, UserPrompt
from support.engines.one_stage import collect, configure, running, token_ids
from support.models.spoken import RATE_HZ, WhisperJudge, make_audio

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]
MAX_TOKENS = 48


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="module")
def judge(checkpoint: Path) -> WhisperJudge:
    return WhisperJudge(checkpoint)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[StageEngine]:
    async with running(configure("asr/whisper", checkpoint, max_num_seqs=4, kv_cache_memory_mib=64)) as engine:
        yield engine


def ask(
    name: str, samples: np.ndarray, *, max_tokens: int | None = MAX_TOKENS, text: str = "", **arguments: Any
) -> StageRequest:
    parts = [*([TextPart(text)] if text else []), AudioPart(samples, RATE_HZ)]
    source = UserPrompt(messages=[ChatMessage("user", parts)], template_arguments=arguments)
    return StageRequest(name, source, SamplingDefaults(temperature=0.0, max_tokens=max_tokens))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("language", ["en", "de"])
async def test_equals_transformers(engine: StageEngine, judge: WhisperJudge, timed: bool, language: str) -> None:
    for seed in range(3):
        samples = make_audio(4 + seed, seed)
        expected = judge.write(samples, timed=timed, max_tokens=MAX_TOKENS, language=language)
        made = await collect(engine, ask(f"{language}{timed}{seed}", samples, language=language, timestamps=timed))
        assert token_ids(made) == expected
        assert len(set(expected)) > 5, "the checkpoint says the same thing over and over"
        if not timed:
            # The detokenizer of vLLM holds back a character whose last byte the maximum length cuts off.
            assert "".join(step.text for step in made).rstrip("\ufffd") == judge.text(expected).rstrip("\ufffd")
        assert made[-1].finish_reason is FinishReason.LENGTH
        assert [step.finish_reason for step in made[:-1]] == [None] * (len(made) - 1)


async def test_the_task_and_the_prompt_count(engine: StageEngine, judge: WhisperJudge) -> None:
    samples = make_audio(5, 3)
    plain = judge.write(samples, timed=False, max_tokens=MAX_TOKENS)
    translated = judge.write(samples, timed=False, max_tokens=MAX_TOKENS, task="translate")
    made = await collect(engine, ask("translated", samples, language="en", task="translate"))
    assert token_ids(made) == translated != plain
    from transformers import WhisperProcessor

    processor = WhisperProcessor.from_pretrained(judge.model.name_or_path)
    hints = processor.get_prompt_ids("tea at noon", return_tensors="pt")
    hinted = judge.write(samples, timed=False, max_tokens=MAX_TOKENS, prompt_ids=hints)
    made = await collect(engine, ask("hinted", samples, language="en", prompt="tea at noon"))
    assert token_ids(made) == hinted != plain


async def test_the_model_names_the_language(engine: StageEngine, judge: WhisperJudge) -> None:
    for seed in range(3):
        samples = make_audio(3, seed)
        code = {number: name for name, number in judge.model.generation_config.lang_to_id.items()}[
            judge.language(samples)
        ]
        made = await collect(engine, ask(f"named{seed}", samples))
        assert token_ids(made) == judge.write(samples, timed=False, max_tokens=MAX_TOKENS, language=code.strip("<|>"))
        assert made[-1].language == code.strip("<|>")


async def test_four_at_once_equal_each_alone(engine: StageEngine) -> None:
    wishes: list[dict[str, Any]] = [
        {"language": "en"},
        {"language": "de", "timestamps": True},
        {},
        {"task": "translate", "timestamps": True, "prompt": "rain"},
    ]
    audios = [make_audio(3 + 2 * seed, seed) for seed in range(4)]
    alone = [
        token_ids(await collect(engine, ask(f"alone{n}", audio, **wish)))
        for n, (audio, wish) in enumerate(zip(audios, wishes, strict=True))
    ]
    together = await asyncio.gather(
        *(
            collect(engine, ask(f"together{n}", audio, **wish))
            for n, (audio, wish) in enumerate(zip(audios, wishes, strict=True))
        )
    )
    assert [token_ids(made) for made in together] == alone


async def test_long_audio_is_heard_in_windows(engine: StageEngine, judge: WhisperJudge) -> None:
    """The windows are those that follow from what transformers writes for each; silence between them is not heard."""
    samples = np.concatenate([make_audio(37, 1), np.zeros(12 * RATE_HZ, np.float32), make_audio(6, 2)])
    made = await collect(engine, ask("long", samples, max_tokens=None, language="en"))
    generation, begin_s, heard, seen = judge.model.generation_config, 0.0, [], []
    for _ in range(20):
        window = samples[round(begin_s * RATE_HZ) :][: round(WINDOW_S * RATE_HZ)]
        written = judge.write(window, timed=True, max_tokens=generation.max_length - 3)
        reader = WindowReader(
            end_id=generation.eos_token_id,
            first_timestamp_id=generation.no_timestamps_token_id + 1,
            window_s=window.size / RATE_HZ,
        )
        closed = reader.add(written)
        rest, advance_s = reader.end()
        heard += written
        seen += [judge.text(list(one.token_ids)) for one in (*closed, *rest)]
        begin_s += advance_s
        if 36 <= begin_s < 48:
            begin_s = 48.8
        if begin_s > 54.9:
            break
    assert token_ids(made) == heard
    segments = [segment for step in made for segment in step.segments]
    assert [segment.text for segment in segments] == [text for text in seen if text]
    assert "".join(step.text for step in made) == "".join(seen)
    assert all(one.start_s <= one.end_s <= 55.01 for one in segments)


async def test_silence_is_not_heard(engine: StageEngine) -> None:
    (only,) = await collect(engine, ask("silence", np.zeros(5 * RATE_HZ, np.float32)))
    assert (only.text, only.finish_reason) == ("", FinishReason.EMPTY_INPUT)


async def test_a_reader_that_leaves_ends_the_request(engine: StageEngine, judge: WhisperJudge) -> None:
    """In the second window too; the engine then serves others, and has nothing left to do."""
    steps = engine.generate(ask("left", make_audio(70, 1), max_tokens=None, language="en"))
    async for step in steps:
        if any(segment.start_s > WINDOW_S for segment in step.segments):
            break
    await steps.aclose()
    samples = make_audio(3, 2)
    made = await collect(engine, ask("left", samples, language="en"))
    assert token_ids(made) == judge.write(samples, timed=False, max_tokens=MAX_TOKENS)
    assert engine.unfinished_requests == 0


async def test_one_sequence_at_a_time(checkpoint: Path, judge: WhisperJudge) -> None:
    """A window takes more tokens of the encoder than the decoder's longest sequence has."""
    samples = make_audio(31, 2)
    expected = judge.write(samples[: 30 * RATE_HZ], timed=True, max_tokens=MAX_TOKENS)
    async with running(configure("asr/whisper", checkpoint, max_num_seqs=1, kv_cache_memory_mib=64)) as engine:
        asked = [ask(str(n), samples, language="en", timestamps=True) for n in range(3)]
        made = await asyncio.gather(*(collect(engine, one) for one in asked))
    assert [token_ids(steps)[:MAX_TOKENS] for steps in made] == [expected] * 3


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (ask("xx", make_audio(1, 0), language="xx"), "start.chat.template_arguments.language"),
        (ask("task", make_audio(1, 0), task="sing"), "start.chat.template_arguments.task"),
        (ask("timestamps", make_audio(1, 0), timestamps="yes"), "start.chat.template_arguments.timestamps"),
        (ask("text", make_audio(1, 0), text="What is this?"), "start.chat.messages[0].parts"),
        (StageRequest("plain", UserPrompt(text="hello"), SamplingDefaults()), "start.input"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_refusals_name_the_field(engine: StageEngine, request_: StageRequest, field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await collect(engine, request_)
    assert refused.value.details.field == field
