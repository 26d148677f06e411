"""A stage's notes reach the client with OpenAI's names of the fields, and only if there are any."""

from __future__ import annotations

from omni_gateway.openai.chat_events import ChatAnswer, read_notes
from omni_proto.client import StageFinished
from omni_proto.client.responses.events import StageTimings, Usage


def test_notes_name_the_clients_fields() -> None:
    notes = ("start.chat.messages[2].parts[1].audio: the audio is damaged", "something else")
    finished = StageFinished("thinker", "stop", "", Usage(), StageTimings(), notes)
    assert read_notes(finished) == ["messages[2].content[1]: the audio is damaged", "something else"]


def test_answers_have_notes_only_if_there_are_any() -> None:
    answer = ChatAnswer("chatcmpl-1", "m", 0)
    assert "notes" not in answer.last()
    assert "notes" not in answer.whole("hi", None, {})
    answer.notes = ["x"]
    assert answer.last()["notes"] == answer.whole("hi", None, {})["notes"] == ["x"]
    assert "notes" not in answer.first()
