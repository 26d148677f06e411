"""A stage's notes reach the client with OpenAI's names of the fields, and only if there are any."""

from __future__ import annotations

from omni_gateway.client_paths import ClientPaths
from omni_gateway.openai.chat_events import ChatAnswer
from omni_proto.client import StageFinished
from omni_proto.client.events import StageTimings, Usage


def test_notes_name_the_clients_fields() -> None:
    parts = ["messages[0].content[0]", "messages[0].content[1].input_audio.data"]
    answer = ChatAnswer("chatcmpl-1", "m", 0, paths=ClientPaths(parts=[parts], has_messages=True))
    notes = ("start.chat.messages[0].parts[1].audio: the audio is damaged", "something else")
    answer.note(StageFinished("thinker", "stop", "", Usage(), StageTimings(), notes))
    assert answer.notes == ["messages[0].content[1].input_audio.data: the audio is damaged", "something else"]


def test_answers_have_notes_only_if_there_are_any() -> None:
    answer = ChatAnswer("chatcmpl-1", "m", 0)
    assert "notes" not in answer.last()
    assert "notes" not in answer.whole("hi", None, {})
    answer.notes = ["x"]
    assert answer.last()["notes"] == answer.whole("hi", None, {})["notes"] == ["x"]
    assert "notes" not in answer.first()
