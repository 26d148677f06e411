"""Earlier turns of a session: of which of them the pipeline hears the audio again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_gateway.entries.connections import EntryFacts
from omni_gateway.realtime.pipeline_calls import count_recalled, put_unheard_last, recall_heard
from omni_gateway.realtime.state.items import Content
from omni_gateway.realtime.state.prompt import Prompt

FACTS = EntryFacts("thinker", ("thinker",), ("text",), (), 4096, False, False, False, hears=True, max_media=8)
IMAGE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
AUDIO: dict[str, Any] = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}


def test_only_the_last_audio_is_heard_again() -> None:
    first, lost, last = Content("input_audio", " My name is Ada.", b"1"), Content("input_audio", "", b"2"), Content("")
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [AUDIO, {"type": "text", "text": "(softly)"}]},
        {"role": "assistant", "content": "Hello, Ada."},
        {"role": "user", "content": [AUDIO]},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "user", "content": [AUDIO]},
    ]
    paths = [["i"], ["a0", "a1"], ["b"], ["c0"], [], ["d0"]]
    prompt = Prompt({"model": "m", "messages": messages}, [first, lost, last], paths)
    assert count_recalled(prompt, replace(FACTS, transcribes=True)) == 2
    recalled = recall_heard(prompt, 2)
    words = [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": "(softly)"}]
    expected = [messages[0], {"role": "user", "content": words}, messages[2], messages[4], messages[5]]
    assert recalled.body == {"model": "m", "messages": expected}
    assert recalled.audio == [last]
    assert recalled.paths == [["i"], ["a0", "a1"], ["b"], [], ["d0"]]


def test_words_that_are_known_are_not_heard_again_where_another_stage_answers() -> None:
    """The client asked for a transcript before the answer, as Open WebUI does."""
    messages: list[Any] = [{"role": "user", "content": [AUDIO]}]
    cascade = replace(FACTS, transcribes=True, stages=("asr", "llm"), stage="asr", answering="llm")
    for words, facts, count in (
        ("Hello.", cascade, 1),
        ("", cascade, 0),
        ("Hello.", replace(cascade, answering="asr"), 0),
    ):
        prompt = Prompt({"messages": messages}, [Content("input_audio", words, b"1")], [["a0"]])
        assert count_recalled(prompt, facts) == count
    typed: Any = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
    typed = Prompt({"messages": [*messages, typed]}, [Content("input_audio", "", b"1")], [["a0"], ["b0"]])
    assert count_recalled(typed, cascade) == 1


@pytest.mark.parametrize("words", ["", "Hello."])
def test_what_nobody_wrote_down_comes_last(words: str) -> None:
    """A client may add written messages between the user's speech and the answer; only the last message is heard."""
    spoken: dict[str, Any] = {"role": "user", "content": [AUDIO]}
    notes: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "system", "content": "It is noon."}]
    prompt = Prompt(
        {"model": "m", "messages": [notes[0], spoken, notes[1]]}, [Content("", words)], [["i"], ["a"], ["n"]]
    )
    moved = put_unheard_last(prompt)
    if words:
        assert moved is prompt
        return
    assert moved.body == {"model": "m", "messages": [*notes, spoken]}
    assert (moved.audio, moved.paths) == (prompt.audio, [["i"], ["n"], ["a"]])
    typed = {"role": "user", "content": [{"type": "text", "text": "In short."}]}
    asked = Prompt({"messages": [spoken, typed, notes[1]]}, prompt.audio, [["a"], ["t"], ["n"]])
    assert put_unheard_last(asked).body == {"messages": [typed, notes[1], spoken]}, "what was said is not lost"
    for messages in (
        notes,
        [spoken],
        [notes[0], spoken],
        [spoken, {"role": "assistant", "content": "Hi"}, notes[0]],
        [],
    ):
        same = Prompt({"messages": messages}, [Content("", "")], [["x"]] * len(messages))
        assert put_unheard_last(same) is same


def _call(turns: int, images: int = 0) -> Prompt:
    """Returns the prompt of a call in which the user has spoken in each turn."""
    messages: list[Any] = [{"role": "user", "content": [IMAGE] * images}] if images else []
    for turn in range(turns):
        messages += [{"role": "user", "content": [AUDIO]}, {"role": "assistant", "content": f"Answer {turn}."}]
    audio = [Content("input_audio", f"Turn {turn}." if turn % 2 else "", b"1") for turn in range(turns)]
    paths = [["p"] * len(message["content"] if message["role"] == "user" else "p") for message in messages[:-1]]
    return Prompt({"model": "m", "messages": messages[:-1]}, audio, paths)


@pytest.mark.parametrize("limit", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("images", [0, 1, 5])
def test_a_long_call_stays_within_the_media_of_a_request(limit: int, images: int) -> None:
    """However long it is. The newest audio is always heard, and the beginning of the prompt changes seldom."""
    facts, counts = replace(FACTS, max_media=limit), []
    for turns in range(1, 80):
        prompt = _call(turns, images)
        counts.append(count_recalled(prompt, facts))
        heard = recall_heard(prompt, counts[-1])
        assert heard.audio == prompt.audio[counts[-1] :]
        assert heard.audio[-1] is prompt.audio[-1]
        assert len(heard.audio) <= max(1, limit - images)
        assert len(heard.paths) == len(heard.body["messages"])
    assert counts == sorted(counts)
    assert len(set(counts)) <= 80 / max(1, max(1, limit - images) // 2) + 1


def test_of_audio_that_is_not_heard_again_the_words_stay() -> None:
    """If they were written down."""
    prompt = _call(9)
    recalled = recall_heard(prompt, count_recalled(prompt, FACTS))
    texts = [message["content"] for message in recalled.body["messages"] if message["content"] != [AUDIO]]
    written = [[{"type": "text", "text": f"Turn {turn}."}] for turn in (1, 3)]
    assert [text for text in texts if isinstance(text, list)] == written
    assert len(recalled.audio) == 5


def test_a_stage_that_names_no_limit_hears_everything() -> None:
    prompt = _call(40)
    assert recall_heard(prompt, count_recalled(prompt, replace(FACTS, max_media=0))) is prompt
