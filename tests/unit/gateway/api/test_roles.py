"""Of several texts, the last one is the answer, and what the entry heard is the user's."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from omni_proto.client import AsyncOmniClient, ResultBuilder, TextDelta, TranscriptDelta, audio_part, user
from omni_stage.exchange import GivenReply
from omni_stage.models.component import TextPart, UserPrompt
from support.processes.polling import PATIENCE_S
from support.stages.spoken_dialogue import ANSWER, HEARD, SEGMENTS, Dialogue

HEADER = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data\x08\0\0\0"
WAV = base64.b64encode(HEADER + bytes(8)).decode()
QUESTION: list[Any] = [
    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}]}
]
SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "Ada", "format": "pcm16"}}


@pytest.fixture
async def dialogue() -> AsyncIterator[Dialogue]:
    async with AsyncExitStack() as stack:
        made = Dialogue()
        await made.start(stack)
        yield made


async def test_the_answer_is_the_last_text_and_the_transcript_is_beside_it(dialogue: Dialogue) -> None:
    answer = await dialogue.client.chat.completions.create(model="m", messages=QUESTION)
    choice = answer.choices[0]
    assert choice.message.content == "".join(ANSWER)
    assert choice.message.to_dict()["input_transcript"] == "".join(HEARD)
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.to_dict() == {
        "prompt_tokens": 6,
        "completion_tokens": 4,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"audio_tokens": 0, "text_tokens": 4},
    }
    again = [*QUESTION, choice.message, {"role": "user", "content": "And of Italy?"}]
    await dialogue.client.chat.completions.create(model="m", messages=again)


async def test_a_stream_separates_both_texts(dialogue: Dialogue) -> None:
    stream = await dialogue.client.chat.completions.create(model="m", messages=QUESTION, stream=True)
    deltas = [chunk.choices[0].delta.to_dict() async for chunk in stream]
    assert "".join(str(delta.get("content") or "") for delta in deltas) == "".join(ANSWER)
    assert "".join(str(delta.get("input_transcript", "")) for delta in deltas) == "".join(HEARD)


async def test_the_transcript_of_spoken_audio_is_the_answer(dialogue: Dialogue) -> None:
    answer = await dialogue.client.chat.completions.create(model="m", messages=QUESTION, **SPOKEN)
    message = answer.choices[0].message
    assert message.audio is not None
    assert message.audio.transcript == "".join(ANSWER)
    assert len(base64.b64decode(message.audio.data)) == 4800
    assert message.to_dict()["input_transcript"] == "".join(HEARD)
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.to_dict() == {"text_tokens": 4}, "the voice has no tokens"
    stream = await dialogue.client.chat.completions.create(model="m", messages=QUESTION, stream=True, **SPOKEN)
    deltas: list[Any] = [chunk.choices[0].delta.to_dict() async for chunk in stream]
    spoken = "".join(delta.get("audio", {}).get("transcript", "") for delta in deltas)
    assert spoken == "".join(ANSWER)


async def test_sampling_is_that_of_the_stage_that_answers(dialogue: Dialogue) -> None:
    await dialogue.client.chat.completions.create(
        model="m", messages=QUESTION, temperature=1.5, max_completion_tokens=5, stop=["!"]
    )
    assert dialogue.sampling["llm"].temperature == 1.5
    assert dialogue.sampling["llm"].max_tokens == 5
    assert dialogue.sampling["llm"].stop == ["!"]
    assert dialogue.sampling["asr"].temperature is None
    assert dialogue.sampling["asr"].max_tokens == 16


@pytest.mark.parametrize(("cut", "expected"), [("asr", "stop"), ("llm", "length")])
async def test_the_finish_reason_is_that_of_the_answer(dialogue: Dialogue, cut: str, expected: str) -> None:
    dialogue.cut = cut
    answer = await dialogue.client.chat.completions.create(model="m", messages=QUESTION)
    assert answer.choices[0].finish_reason == expected


async def test_the_voices_are_those_of_the_stage_that_speaks(dialogue: Dialogue) -> None:
    async with asyncio.timeout(PATIENCE_S):
        # The entry answers without the voices of a stage below that is slow to name them.
        while not (listed := (await dialogue.http.get("/v1/audio/voices")).json()["voices"]):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert [one["name"] for one in listed] == ["Ada"]
    assert (await dialogue.http.get("/v1/models/m")).json()["voices"] == ["Ada"]
    unknown = {**SPOKEN, "audio": {"voice": "Bob", "format": "pcm16"}}
    answer = await dialogue.http.post("/v1/chat/completions", json={"model": "m", "messages": QUESTION, **unknown})
    assert answer.status_code == 400
    assert "use Ada" in answer.json()["error"]["message"]


async def test_a_given_text_is_spoken_although_the_entry_hears(dialogue: Dialogue) -> None:
    asked = {"model": "m", "input": "Good morning!", "response_format": "pcm"}
    answer = await dialogue.http.post("/v1/audio/speech", json=asked)
    assert (answer.status_code, len(answer.content)) == (200, 4800)
    assert dialogue.heard == [], "there is nothing to hear"
    context = dialogue.asked[0].context
    assert context is not None
    assert (context.reply, list(context.messages or ())) == (GivenReply(text="Good morning!"), [])


async def test_a_text_is_refused_where_no_stage_speaks_given_texts() -> None:
    async with AsyncExitStack() as stack:
        dialogue = Dialogue()
        await dialogue.start(stack, takes_reply=False)
        answer = await dialogue.http.post("/v1/audio/speech", json={"model": "m", "input": "Good morning!"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input")
        assert "cannot honour" in answer.json()["error"]["message"]


async def test_the_conversation_reaches_the_stage_that_answers(dialogue: Dialogue) -> None:
    system = {"role": "system", "content": "Be brief."}
    audio = {"type": "input_audio", "input_audio": {"data": "not read again", "format": "wav"}}
    first = await dialogue.client.chat.completions.create(model="m", messages=[system, *QUESTION])  # type: ignore[list-item]
    said = first.choices[0].message.to_dict()
    messages: list[Any] = [system, {"role": "user", "content": [audio]}, said, *QUESTION]
    await dialogue.client.chat.completions.create(model="m", messages=messages)
    [alone, second] = [one.context for one in dialogue.asked]
    assert alone is not None
    assert second is not None
    assert described(alone) == [("system", "Be brief.")]
    assert described(second) == [
        ("system", "Be brief."),
        ("user", "".join(HEARD).strip()),
        ("assistant", "".join(ANSWER)),
    ]


async def test_a_message_that_is_written_is_answered_although_the_entry_hears(dialogue: Dialogue) -> None:
    """Open WebUI and the page send typed messages to every model, and agents greet a caller before a word is said."""
    system = {"role": "system", "content": "Greet the user."}
    typed = {"role": "user", "content": "Who are you?"}
    for messages in ([typed], [system], [system, typed]):
        answer = await dialogue.http.post("/v1/chat/completions", json={"model": "m", "messages": messages, **SPOKEN})
        message = answer.json()["choices"][0]["message"]
        assert message["audio"]["transcript"] == "".join(ANSWER)
        assert "input_transcript" not in message
        context = dialogue.asked[-1].context
        assert context is not None
        assert context.written
        assert described(context) == [(one["role"], one["content"]) for one in messages]
    assert dialogue.heard == [], "there is nothing to hear"


async def test_earlier_audio_that_nobody_wrote_down_is_refused(dialogue: Dialogue) -> None:
    audio = {"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}
    messages = [{"role": "user", "content": [audio]}, {"role": "assistant", "content": "Paris."}, *QUESTION]
    answer = await dialogue.http.post("/v1/chat/completions", json={"model": "m", "messages": messages})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0].input_audio.data")
    assert "as text" in answer.json()["error"]["message"]


async def test_only_the_stage_that_answers_gets_the_conversation(dialogue: Dialogue) -> None:
    await dialogue.client.chat.completions.create(model="m", messages=QUESTION)
    assert dialogue.asked[0].context is None


def described(context: UserPrompt) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(part.text for part in message.parts if isinstance(part, TextPart)))
        for message in context.messages or ()
    ]


async def test_the_client_names_the_answer_the_transcript_and_each_stage_s_text(dialogue: Dialogue) -> None:
    async with AsyncOmniClient(dialogue.entry.target) as client:
        described = await client.get_stage()
        assert (described.answering_stage, list(described.media)) == ("llm", ["audio"])
        assert (described.text.transcribes, described.text.times_words) == (True, True)
        builder = ResultBuilder()
        kinds: dict[type[Any], set[str]] = {}
        async for event in client.generate(chat=user(audio_part(HEADER + bytes(8)))):
            builder.add(event)
            kinds.setdefault(type(event), set()).add(event.stage)
        assert kinds[TranscriptDelta] == {"asr"}
        assert kinds[TextDelta] == {"llm"}
        result = builder.result()
        assert (result.text, result.transcript) == ("".join(ANSWER), "".join(HEARD))
        assert result.texts == {"llm": "".join(ANSWER)}
        assert result.segments == ()
        only = await client.run(
            chat=user(audio_part(HEADER + bytes(8))), modalities=["transcript"], template_arguments={"timestamps": True}
        )
        assert (only.transcript, only.text, set(only.finished)) == ("".join(HEARD), "", {"asr"})
        assert [(one.text, one.segment.start_s, one.segment.end_s) for one in only.segments] == [
            (text, *times) for text, times in zip(HEARD, SEGMENTS, strict=True)
        ]
