"""What each event changes in a session, and what the client is sent: every event fits OpenAI's own types."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from omni_gateway.errors import UnavailableError
from omni_gateway.realtime.call import drop_audio
from omni_gateway.realtime.state.client_events import EventError, read_event
from omni_gateway.realtime.state.effects import Ask, Heard, Listen, Send, Stop, Transcribe
from omni_gateway.realtime.state.response import Called, Ended, Failed, Said, Spoke
from omni_gateway.realtime.state.turns import Began, Hesitated, Paused, Resumed
from support.peers.held_session import FACTS, SECOND, TOOL, USAGE, Held


def test_an_answer_is_spoken_in_ga_events_in_their_order() -> None:
    held = Held()
    held.say("hi")
    asked = held.ask(metadata={"client_event_id": "x"})
    assert asked.prompt.body["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert asked.prompt.body["audio"] == {"format": "pcm16", "voice": "Chelsie"}
    id = asked.response_id
    names = held.take(held.session.answer(id, Said("Hello")))
    names += held.take(held.session.answer(id, Spoke(b"\1\2" * 240, 10.0)))
    names += held.take(held.session.answer(id, Said(" there")))
    names += held.take(held.session.answer(id, Ended(USAGE, is_cut=False)))
    assert names == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    done = held.sent[-1]["response"]
    assert (done["status"], done["status_details"], done["metadata"]) == ("completed", None, {"client_event_id": "x"})
    assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello there"}]
    assert done["usage"]["output_token_details"] == {"text_tokens": 2, "audio_tokens": 3}
    assert done["usage"]["input_token_details"]["cached_tokens"] == 4
    assert held.take(held.session.answer(id, Said("late"))) == []
    held.say("and?")
    assert [one["role"] for one in held.ask().prompt.body["messages"]] == ["user", "assistant", "user"]


def test_an_interruption_drops_the_audio_that_waits() -> None:
    held, waiting = Held(), []
    for _ in range(2):
        asked = held.ask(conversation="none")
        for output in (Said("Hello"), Spoke(b"\1\2" * 240, 10.0)):
            waiting += [one.event for one in held.session.answer(asked.response_id, output) if isinstance(one, Send)]
    left = drop_audio(waiting, asked.response_id)
    audio = [one for one in left if one["type"] == "response.output_audio.delta"]
    assert len(waiting) - len(left) == len(audio) == 1
    assert audio[0]["response_id"] != asked.response_id


def test_text_answers_have_no_audio() -> None:
    held = Held()
    held.update(output_modalities=["text"])
    asked = held.ask()
    held.take(held.session.answer(asked.response_id, Said("Hello")))
    names = held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=True)))
    assert names[:2] == ["response.output_text.done", "response.content_part.done"]
    done = held.sent[-1]["response"]
    assert done["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert done["output"][0]["status"] == "incomplete"
    assert "audio" not in asked.prompt.body


def test_habits_are_accepted_and_the_session_shows_what_holds() -> None:
    held = Held()
    shown = held.update(
        tracing="auto",
        model="gpt-realtime",
        include=["item.input_audio_transcription.logprobs"],
        audio={
            "input": {
                "noise_reduction": {"type": "near_field"},
                "transcription": {"model": "gpt-4o-mini-transcribe", "language": "de_AT"},
                "turn_detection": {"type": "semantic_vad", "eagerness": "low", "interrupt_response": False},
            },
            "output": {"voice": "marin", "speed": 1.2},
        },
        tools=[TOOL, {"type": "mcp", "server_label": "x"}],
        tool_choice="auto",
    )
    assert (shown["model"], shown["tracing"], shown["include"]) == ("m", None, None)
    assert shown["audio"]["input"]["noise_reduction"] is None
    assert shown["audio"]["input"]["transcription"] == {"model": "m", "language": "de-AT"}
    detection = shown["audio"]["input"]["turn_detection"]
    assert (detection["type"], detection["silence_duration_ms"]) == ("server_vad", 1200)
    assert detection["interrupt_response"] is False
    assert (shown["audio"]["output"]["voice"], shown["audio"]["output"]["speed"]) == ("Chelsie", 1.0)
    assert shown["tools"] == [TOOL]
    again = held.update(audio={"input": {"turn_detection": {"threshold": 0.7}}, "output": {"voice": "alloy"}})
    assert again["audio"]["input"]["turn_detection"] == {**detection, "threshold": 0.7}
    assert again["audio"]["output"]["voice"] == "Ethan"
    assert again["audio"]["input"]["transcription"] == {"model": "m", "language": "de-AT"}
    assert held.update(audio={"input": {"turn_detection": None}})["audio"]["input"]["turn_detection"] is None


def test_the_session_shows_what_the_pipeline_cannot_do() -> None:
    deaf = replace(FACTS, hears=False, calls_tools=False, modalities=("text",), voices=())
    shown = Held(deaf).update(output_modalities=["audio"], tools=[TOOL], audio={"input": {"transcription": {}}})
    assert (shown["output_modalities"], shown["tools"]) == (["text"], [])
    assert (shown["audio"]["input"]["turn_detection"], shown["audio"]["input"]["transcription"]) == (None, None)


@pytest.mark.parametrize(
    ("session", "param"),
    [
        ({"audio": {"output": {"voice": "nobody"}}}, "session.audio.output.voice"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16_000}}}}, "session.audio.input.format.rate"),
        ({"audio": {"input": {"turn_detection": {"threshold": 2}}}}, "session.audio.input.turn_detection.threshold"),
        ({"max_output_tokens": 0}, "session.max_output_tokens"),
        ({"type": "transcription"}, "session.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "x"}}, "session.tool_choice"),
    ],
)
def test_a_wrong_field_is_named_and_changes_nothing(session: dict[str, Any], param: str) -> None:
    held = Held()
    before = held.session.config
    assert held.send("session.update", session=session) == ["error"]
    assert held.error["param"].startswith(param)
    assert (held.error["type"], held.error["event_id"]) == ("invalid_request_error", "mine")
    assert held.session.config == before


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("response.cancel", {}, "response_cancel_not_active"),
        ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty"),
        ("conversation.item.retrieve", {"item_id": "x"}, "item_retrieve_invalid_item_id"),
        ("conversation.item.delete", {"item_id": "x"}, "item_delete_invalid_item_id"),
        ("conversation.item.truncate", {"item_id": "x", "audio_end_ms": 1}, "item_truncate_invalid_item_id"),
        ("conversation.item.create", {"item": {"type": "mcp_call"}}, "invalid_value"),
        ("input_audio_buffer.append", {"audio": "?"}, "invalid_media"),
    ],
)
def test_errors_have_the_codes_that_clients_know(kind: str, fields: dict[str, Any], code: str) -> None:
    held = Held()
    assert held.send(kind, **fields) == ["error"]
    assert (held.error["code"], held.error["event_id"]) == (code, "mine")


def test_an_event_that_cannot_be_read_names_what_is_wrong() -> None:
    for text, param, event_id in (
        ("[]", None, None),
        ("{", None, None),
        ('{"type": "response.speak", "event_id": "e"}', "type", "e"),
        ('{"type": "conversation.item.delete"}', "item_id", None),
    ):
        with pytest.raises(EventError) as caught:
            read_event(text, 1000, lambda size: None)
        assert (caught.value.error.param, caught.value.event_id) == (param, event_id)


def test_audio_is_committed_by_hand_and_written_down() -> None:
    held = Held()
    held.update(audio={"input": {"turn_detection": None, "transcription": {"model": "whisper-1"}}})
    assert held.send("input_audio_buffer.append", audio=SECOND) == []
    names = held.send("input_audio_buffer.commit")
    assert names == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done", "Transcribe"]
    work = held.work[-1]
    assert isinstance(work, Transcribe)
    assert len(work.audio.audio) == 48_000
    item = held.sent[-1]["item"]
    held.take(held.session.transcribe(item["id"], Heard("Good")))
    details = {"text_tokens": 1, "audio_tokens": 0}
    usage = {"type": "tokens", "input_tokens": 1, "input_token_details": details, "output_tokens": 2, "total_tokens": 3}
    held.take(held.session.transcribe(item["id"], Heard("Good day", usage)))
    assert held.sent[-1]["transcript"] == "Good day"
    assert held.send("conversation.item.retrieve", item_id=item["id"]) == ["conversation.item.retrieved"]
    assert held.sent[-1]["item"]["content"] == [{"type": "input_audio", "transcript": "Good day", "audio": SECOND}]
    assert len(held.ask().prompt.audio) == 1
    failed = Heard("", error=UnavailableError("gone"))
    assert held.take(held.session.transcribe(item["id"], failed)) == [
        "conversation.item.input_audio_transcription.failed"
    ]
    assert held.send("input_audio_buffer.clear") == ["input_audio_buffer.cleared"]


def speak(held: Held, seconds: int) -> None:
    """Sends audio, which begins a turn."""
    start_ms = held.session.buffer.end_ms
    for _ in range(seconds):
        assert held.send("input_audio_buffer.append", audio=SECOND) == ["Listen"]
    assert isinstance(held.work[-1], Listen)
    held.take(held.session.turn(Began(round(start_ms) + 100)))


def test_a_turn_of_the_user_is_an_item_and_is_answered() -> None:
    held = Held()
    speak(held, 2)
    names = held.take(held.session.turn(Paused(1500)))
    assert names == [
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        "response.created",
        "Ask",
    ]
    started = next(one for one in held.sent if one["type"].endswith("speech_started"))
    committed = next(one for one in held.sent if one["type"].endswith("committed"))
    assert started["item_id"] == committed["item_id"]
    work = held.work[-1]
    assert isinstance(work, Ask)
    assert len(work.prompt.audio[0].audio) == 1400 * 48, "from the begin of the turn to its end"
    assert held.session.buffer.milliseconds == pytest.approx(500)


def hesitate(held: Held, end_ms: int) -> Ask:
    """Ends a piece of the user's turn. Returns the answer that is begun early."""
    assert held.take(held.session.turn(Hesitated(end_ms))) == ["Ask"]
    work = held.work[-1]
    assert isinstance(work, Ask)
    assert work.is_early
    return work


def test_an_answer_that_was_begun_at_a_pause_is_the_turns_if_nothing_came_after() -> None:
    held = Held()
    speak(held, 2)
    asked = hesitate(held, 1300)
    assert held.session.held_bytes > 2 * 1200 * 48
    assert held.take(held.session.answer(asked.response_id, Said("Hello"))) == [], "nothing is passed on yet"
    names = held.take(held.session.turn(Paused(1500)))
    assert names[-2:] == ["response.created", "Release"]
    assert held.sent[-1]["response"]["id"] == asked.response_id
    assert next(one for one in held.sent if one["type"].endswith("speech_stopped"))["audio_end_ms"] == 1300
    item = held.session.conversation.items[0]
    assert item.content[0] is asked.prompt.audio[0], "what is kept is what was heard"
    assert len(item.content[0].audio) == 1200 * 48
    assert held.session.buffer.milliseconds == pytest.approx(500), "the silence of the turn is gone"
    assert "response.output_audio_transcript.delta" in held.take(held.session.answer(asked.response_id, Said("Hello")))


@pytest.mark.parametrize("kind", ["session.update", "conversation.item.create", "input_audio_buffer.clear"])
def test_an_early_answer_is_dropped_with_what_it_was_asked_from(kind: str) -> None:
    held = Held()
    speak(held, 2)
    hesitate(held, 1300)
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "and"}]}
    assert held.send(kind, session={"instructions": "Shout."}, item=item)[0] == "Stop"


def test_a_user_who_continues_drops_the_early_answer_and_a_turn_has_two_at_most() -> None:
    held = Held()
    speak(held, 2)
    for end_ms in (1000, 1500):
        hesitate(held, end_ms)
        assert held.take(held.session.turn(Resumed())) == ["Stop"]
        assert held.take(held.session.turn(Resumed())) == []
    assert held.take(held.session.turn(Hesitated(1700))) == []
    assert held.take(held.session.turn(Paused(1900)))[-2:] == ["response.created", "Ask"]
    work = held.work[-1]
    assert isinstance(work, Ask)
    assert not work.is_early
    assert len(work.prompt.audio[0].audio) == 1800 * 48, "all of the turn"


def test_an_early_answer_to_other_words_is_not_used() -> None:
    held = Held()
    speak(held, 1)
    held.take(held.session.turn(Paused(900)))
    first = held.work[-1]
    assert isinstance(first, Ask)
    held.take(held.session.answer(first.response_id, Ended(USAGE, is_cut=False)))
    speak(held, 1)
    asked = hesitate(held, 1700)
    # The first turn has been written down meanwhile, which a pipeline may read in place of its audio.
    held.take(
        held.session.transcribe(
            held.session.conversation.items[0].id, Heard("Hi", {"type": "duration", "seconds": 1.0})
        )
    )
    names = held.take(held.session.turn(Paused(1900)))
    assert names[-3:] == ["response.created", "Ask", "Stop"]
    assert isinstance(held.work[-1], Stop)
    assert held.work[-1].response_id == asked.response_id


def test_silence_before_a_turn_is_not_kept() -> None:
    held = Held()
    for _ in range(30):
        held.send("input_audio_buffer.append", audio=SECOND)
    assert held.session.buffer.milliseconds == pytest.approx(2300)
    assert held.session.buffer.end_ms == pytest.approx(30_000)


def test_speech_interrupts_an_answer_and_the_history_has_what_was_heard() -> None:
    held = Held()
    held.say("tell me a story")
    asked = held.ask()
    held.take(held.session.answer(asked.response_id, Said("Once upon a time there was a king who")))
    for _ in range(20):
        held.take(held.session.answer(asked.response_id, Spoke(bytes(9600), 200.0)))
    speak(held, 1)
    stop = next(one for one in held.work if isinstance(one, Stop))
    assert stop.response_id == asked.response_id
    done = held.sent[-1]["response"]
    assert done["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    item = done["output"][0]
    assert item["status"] == "incomplete"
    kind = "conversation.item.truncate"
    assert held.send(kind, item_id=item["id"], content_index=0, audio_end_ms=1500) == ["conversation.item.truncated"]
    held.send("conversation.item.retrieve", item_id=item["id"])
    assert held.sent[-1]["item"]["content"][0]["transcript"] == "Once upon a"
    names = held.take(held.session.turn(Paused(900)))
    assert names[-2:] == ["response.created", "Ask"]
    work = held.work[-1]
    assert isinstance(work, Ask)
    assert work.prompt.body["messages"][1] == {"role": "assistant", "content": "Once upon a"}
    held.send(kind, item_id=item["id"], content_index=0, audio_end_ms=0)
    assert held.sent[-1]["audio_end_ms"] == 0


def test_without_interruptions_a_turn_waits_for_the_end_of_the_answer() -> None:
    held = Held()
    held.update(audio={"input": {"turn_detection": {"interrupt_response": False}}})
    asked = held.ask()
    speak(held, 1)
    assert held.take(held.session.turn(Paused(900)))[-1] == "conversation.item.done"
    assert held.session.is_busy
    names = held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    assert names == ["response.done", "response.created", "Ask"]


def test_functions_are_called_and_answered() -> None:
    held = Held()
    held.update(tools=[TOOL], tool_choice={"type": "function", "name": "weather"})
    held.say("weather?")
    asked = held.ask()
    assert asked.prompt.body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    id = asked.response_id
    names = held.take(held.session.answer(id, Called(0, "call0", "weather", "")))
    names += held.take(held.session.answer(id, Called(0, "", "", '{"city": 1}')))
    names += held.take(held.session.answer(id, Ended(USAGE, is_cut=False)))
    assert names == [
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "conversation.item.done",
        "response.done",
    ]
    output = {"type": "function_call_output", "call_id": "call0", "output": "rain"}
    held.send("conversation.item.create", item=output)
    assert held.ask(tool_choice="none").prompt.body["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call0", "type": "function", "function": {"name": "weather", "arguments": '{"city": 1}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call0", "content": "rain"},
    ]


def test_out_of_band_responses_leave_the_conversation_alone() -> None:
    held = Held()
    held.say("hi")
    item_id = held.sent[-1]["item"]["id"]
    active = held.ask()
    assert held.send("response.create") == ["error"]
    assert held.error["code"] == "conversation_already_has_active_response"
    given = [{"type": "item_reference", "id": item_id}, {"type": "message", "role": "user", "content": "sum up"}]
    asked = held.ask(conversation="none", input=given, instructions="short", output_modalities=["text"])
    assert [one["role"] for one in asked.prompt.body["messages"]] == ["system", "user", "user"]
    names = held.take(held.session.answer(asked.response_id, Said("ok")))
    assert names[:2] == ["response.output_item.added", "response.content_part.added"]
    held.take(held.session.answer(asked.response_id, Ended(USAGE, is_cut=False)))
    assert held.sent[-1]["response"]["conversation_id"] is None
    assert held.send("response.cancel", response_id=active.response_id) == ["Stop", "response.done"]
    assert held.sent[-1]["response"]["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    assert len(held.session.conversation.items) == 1


def test_a_failure_is_the_responses_own() -> None:
    held = Held()
    asked = held.ask()
    held.take(held.session.answer(asked.response_id, Failed("server_error", "service_unavailable", "gone")))
    done = held.sent[-1]["response"]
    assert done["status"] == "failed"
    assert done["status_details"]["error"] == {"type": "server_error", "code": "service_unavailable", "message": "gone"}
    assert not held.session.is_busy


def test_items_have_the_clients_ids_and_places() -> None:
    held = Held()
    held.say("last")
    first = {"id": "mine-1", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "a"}]}
    held.send("conversation.item.create", item=first, previous_item_id="root")
    assert held.sent[-1]["previous_item_id"] is None
    between = {"id": "mine-2", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "b"}]}
    held.send("conversation.item.create", item=between, previous_item_id="mine-1")
    assert held.sent[-1]["previous_item_id"] == "mine-1"
    assert [one.role for one in held.session.conversation.items] == ["system", "assistant", "user"]
    assert held.send("conversation.item.create", item=first) == ["error"]
    assert held.error["code"] == "item_create_duplicate_item_id"
    assert held.send("conversation.item.create", item=between, previous_item_id="x") == ["error"]
    assert held.send("conversation.item.delete", item_id="mine-1") == ["conversation.item.deleted"]


def test_a_session_holds_a_limited_number_of_bytes() -> None:
    """The audio of the oldest items is forgotten first. Their transcripts stay."""
    held = Held(max_bytes=100_000)
    held.update(audio={"input": {"turn_detection": None}})
    for _ in range(3):
        held.send("input_audio_buffer.append", audio=SECOND)
        held.send("input_audio_buffer.commit")
        heard = Heard("words", {"type": "duration", "seconds": 1.0})
        held.take(held.session.transcribe(held.sent[-1]["item"]["id"], heard))
    assert held.session.held_bytes <= 100_000
    prompt = held.ask().prompt
    assert len(prompt.audio) == 2
    assert prompt.body["messages"][0]["content"] == [{"type": "text", "text": "words"}]
    held.send("input_audio_buffer.append", audio=SECOND)
    held.send("input_audio_buffer.append", audio=SECOND)
    assert held.send("input_audio_buffer.append", audio=SECOND) == ["error"]
    long = {"type": "message", "role": "user", "content": "x" * 100_000}
    assert held.send("conversation.item.create", item=long) == ["error"]
    assert held.error["code"] == "conversation_too_large"
