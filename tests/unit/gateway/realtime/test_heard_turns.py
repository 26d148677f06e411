"""Earlier turns of a session in front of a pipeline whose entry writes down what it hears."""

from __future__ import annotations

from typing import Any

from omni_gateway.realtime.pipeline_calls import recall_heard
from omni_gateway.realtime.state.items import Content
from omni_gateway.realtime.state.prompt import Prompt

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
    recalled = recall_heard(Prompt({"model": "m", "messages": messages}, [first, lost, last], paths))
    words = [{"type": "text", "text": "My name is Ada."}, {"type": "text", "text": "(softly)"}]
    expected = [messages[0], {"role": "user", "content": words}, messages[2], messages[4], messages[5]]
    assert recalled.body == {"model": "m", "messages": expected}
    assert recalled.audio == [last]
    assert recalled.paths == [["i"], ["a0", "a1"], ["b"], [], ["d0"]]
