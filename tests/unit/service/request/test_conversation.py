"""The conversation and a given reply for the stage that answers, which an entry that only hears passes on."""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.stage.v1 import sampling_pb2, stage_service_pb2 as pb, tensors_pb2
from omni_proto.stage_config import Modality, StageConfig
from omni_proto.tensors import schema_hash
from omni_stage.errors import (
    InvalidMediaError,
    InvalidRequestError,
    OmniStageError,
    PromptTooLongError,
    RequestTooLargeError,
)
from omni_stage.exchange import GivenReply, ToolMode
from omni_stage.models.component import TextPart
from omni_stage.service.guard.field_count import MAX_FIELDS, has_too_many_fields
from omni_stage.service.request.planning.plan import RequestPlan, downstream_start, max_new_tokens, plan_request
from omni_stage.service.request.planning.prompt import build_prompt, is_light
from support.stages.scripted_component import ScriptedComponent
from support.stages.scripted_stages import EDGE_A

ANSWERING = {
    "stage": "llm",
    "target": "localhost:1",
    "component": "test/stage",
    "stages": ["llm", "voice"],
    "outputs": ["Text", "Audio"],
}
EAR = ScriptedComponent(output_schema=EDGE_A, outputs=(Modality.TRANSCRIPT,), media=("audio",))
TURNS: list[Any] = [
    {"role": "system", "parts": [{"text": "Be brief."}]},
    {"role": "user", "parts": [{"text": "My name is Ada."}]},
    {"role": "assistant", "parts": [{"text": "Hello, Ada."}]},
]
WAV = b"RIFF\x2c\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x80>\0\0\0}\0\0\2\0\x10\0data\x08\0\0\0" + bytes(8)
LAST: Any = {"role": "user", "parts": [{"audio": {"data": WAV}}]}
WRITTEN: Any = {"role": "user", "parts": [{"text": "Who am I?"}]}


def config(**changes: Any) -> StageConfig:
    fields = {
        "pipeline": "p",
        "stage": "asr",
        "component": "test/stage",
        "model": {"path": "/none"},
        "outputs": ["Transcript"],
        "downstream": [ANSWERING],
        "answeringStage": "llm",
        "limits": {"maxPromptChars": 200},
    }
    return StageConfig.model_validate({**fields, **changes})


def plan_entry(start: dict[str, Any], **changes: Any) -> RequestPlan:
    return plan_request(pb.Start(**start), config(**changes), EAR, 64)


def plan_reader(
    start: dict[str, Any], *, takes_reply: bool = True, takes_tools: bool = False, **changes: Any
) -> RequestPlan:
    component = ScriptedComponent(
        input_schema=EDGE_A, output_schema=EDGE_A, takes_reply=takes_reply, takes_tools=takes_tools
    )
    headers = [
        {"name": "x", "dtype": tensors_pb2.DTYPE_BFLOAT16, "row_shape": [8], "max_rows": 3},
        {"name": "ids", "dtype": tensors_pb2.DTYPE_INT64, "max_rows": 3},
    ]
    tensors: Any = {"source_stage": "asr", "tensors": headers}
    message = pb.Start(**start, tensors=tensors, edge_schema_hash=schema_hash(EDGE_A))
    read = config(
        **{
            "stage": "llm",
            "outputs": ["Text"],
            "input": {"source": "asr"},
            "downstream": [],
            "answeringStage": None,
            **changes,
        }
    )
    return plan_request(message, read, component, 64)


def handed(start: pb.Start, answering: str | None = "llm") -> pb.Start:
    return downstream_start(start, config().downstream[0], answering)


def test_the_entry_keeps_the_last_message_and_passes_on_the_others() -> None:
    plan = plan_entry({"chat": {"messages": [*TURNS, LAST]}})
    assert plan.prompt is not None
    passed = handed(plan.start)
    assert [message.role for message in passed.conversation] == ["system", "user", "assistant"]
    assert passed.conversation[1] == plan.start.chat.messages[1]
    assert not plan.prompt.written
    assert not passed.written
    assert not handed(plan.start, None).conversation, "the stage itself reads the chat"
    assert not handed(pb.Start(text="hi")).conversation


@pytest.mark.parametrize("last", [WRITTEN, {"role": "system", "parts": [{"text": "Greet the user."}]}, TURNS[2]])
def test_a_message_that_is_written_is_passed_on_too(last: Any) -> None:
    """Nothing of it can be heard."""
    plan = plan_entry({"chat": {"messages": [*TURNS, last]}})
    assert plan.prompt is not None
    assert build_prompt(plan.prompt).written
    passed = handed(handed(plan.start))
    assert list(passed.conversation) == list(plan.start.chat.messages)
    reader = plan_reader({"conversation": passed.conversation, "written": passed.written})
    assert reader.context is not None
    assert build_prompt(reader.context).written


WEATHER: Any = {"name": "weather", "strict": True}
CALLING = {"tools": [WEATHER], "tool_choice": {"function": "weather"}}


def test_tools_are_for_the_stage_that_answers() -> None:
    asked = {"chat": {"messages": [LAST], **CALLING}}
    passed = handed(handed(plan_entry(asked, answeringToolCallParser="hermes").start))
    assert (list(passed.tools), passed.tool_choice.function) == ([pb.Start(**asked).chat.tools[0]], "weather")
    for conversation in ([], TURNS):
        plan = plan_reader(
            {**CALLING, "conversation": conversation}, takes_tools=True, engineArgs={"toolCallParser": "hermes"}
        )
        assert plan.context is not None
        context = build_prompt(plan.context)
        assert context.tools is not None
        assert (context.tools.mode, context.tools.function) == (ToolMode.REQUIRED, "weather")
        assert len(context.messages or ()) == len(conversation)
        assert plan.input_bytes > plan_reader({}).input_bytes


def test_tools_are_refused_by_the_clients_field() -> None:
    asked: dict[str, Any] = {"chat": {"messages": [LAST], **CALLING}}
    engine = {"engineArgs": {"toolCallParser": "hermes", "structuredOutput": "None"}}
    many = {"tools": [{"name": f"t{number}"} for number in range(129)]}
    for refuse, words in (
        (lambda: plan_entry(asked), "'llm' has no parser"),
        (
            lambda: plan_entry(
                {**asked, "modalities": [sampling_pb2.MODALITY_TRANSCRIPT]}, answeringToolCallParser="hermes"
            ),
            "'llm', which the requested modalities do not need",
        ),
        (lambda: plan_reader(CALLING, takes_tools=True), "no parser"),
        (lambda: plan_reader(CALLING, takes_tools=True, **engine), "structuredOutput is None"),
        (lambda: plan_reader(many, takes_tools=True, engineArgs={"toolCallParser": "hermes"}), "at most 128"),
    ):
        with pytest.raises(InvalidRequestError, match=words) as refused:
            refuse()
        assert (refused.value.details.field or "").startswith("start.chat.tool")


def test_a_message_that_is_written_is_the_entrys_where_no_stage_answers() -> None:
    chat = {"messages": [*TURNS, WRITTEN]}
    for plan in (
        plan_entry({"chat": chat, "modalities": [sampling_pb2.MODALITY_TRANSCRIPT]}),
        plan_entry({"chat": chat}, downstream=[], answeringStage=None),
    ):
        assert plan.prompt is not None
        assert not plan.prompt.written


def test_a_stage_in_between_passes_on_what_it_got() -> None:
    first = handed(pb.Start(chat={"messages": [*TURNS, LAST]}, reply={"text": "Hello."}))
    second = handed(first)
    assert list(second.conversation) == list(first.conversation)
    assert second.reply.text == "Hello."
    middle = plan_reader(
        {"conversation": TURNS},
        takes_reply=False,
        downstream=[ANSWERING | {"stage": "a", "stages": ["a", "b"]}],
        stage="c",
        answeringStage="b",
    )
    assert middle.context is None
    assert (
        plan_reader(
            {"reply": {"text": "x"}},
            takes_reply=False,
            downstream=[ANSWERING | {"stage": "a", "stages": ["a", "b"]}],
            stage="c",
            answeringStage="b",
        ).context
        is None
    )
    assert middle.input_bytes > plan_reader({}).input_bytes, "it holds the conversation meanwhile"


def test_the_stage_that_answers_reads_the_conversation_and_a_reply() -> None:
    plan = plan_reader({"conversation": TURNS, "reply": {"text": "Hello."}})
    assert plan.context is not None
    context = build_prompt(plan.context)
    assert context.messages is not None
    assert (context.messages[0].role, context.messages[0].parts) == ("system", [TextPart("Be brief.")])
    assert context.reply == GivenReply(text="Hello.")
    assert plan.sampling.max_tokens == len("Hello.")
    assert max_new_tokens(plan, EAR.facts, 64) == 0, "a given reply is not generated"
    assert plan_reader({}).context is None


@pytest.mark.parametrize(
    ("start", "error", "field"),
    [
        ({"conversation": [{"role": "robot", "parts": [{"text": "x"}]}]}, InvalidRequestError, "messages[0].role"),
        ({"conversation": [{"role": "user"}]}, InvalidRequestError, "messages[0].parts"),
        ({"conversation": [{"role": "user", "parts": [{"audio": {}}]}]}, InvalidRequestError, "parts[0].audio"),
        ({"conversation": [WRITTEN] * 1025}, InvalidRequestError, "start.chat.messages"),
        ({"conversation": [{"role": "user", "parts": [{"text": "x" * 201}]}]}, RequestTooLargeError, "start.chat"),
        ({"reply": {"text": ""}}, InvalidRequestError, "start.reply.text"),
        ({"reply": {"token_ids": {"ids": [1] * 64}}}, PromptTooLongError, "start.reply.token_ids.ids"),
        ({"reply": {"text": "x"}, "sampling": {"llm": {"seed": 1}}}, InvalidRequestError, "start.sampling[llm]"),
    ],
)
def test_a_conversation_is_bounded_as_a_chat_is(start: dict[str, Any], error: type[OmniStageError], field: str) -> None:
    with pytest.raises(error) as refused:
        plan_reader(start)
    assert (refused.value.details.field or "").endswith(field)


def test_a_reply_needs_a_stage_that_speaks_it() -> None:
    with pytest.raises(InvalidRequestError, match="cannot honour reply"):
        plan_reader({"reply": {"text": "x"}}, takes_reply=False)
    with pytest.raises(InvalidRequestError, match="'llm', which the requested modalities do not need"):
        plan_entry({"text": "x", "reply": {"text": "x"}, "modalities": [sampling_pb2.MODALITY_TRANSCRIPT]})
    with pytest.raises(InvalidRequestError, match="cannot honour reply"):
        plan_entry({"text": "x", "reply": {"text": "x"}}, downstream=[], answeringStage=None)


def test_media_before_the_last_message_are_refused_only_if_they_would_be_read() -> None:
    heard = {"role": "user", "parts": [{"text": "Listen:"}, {"audio": {"data": b"RIFF"}}]}
    chat = {"messages": [heard, LAST]}
    with pytest.raises(InvalidRequestError, match="as text") as refused:
        plan_entry({"chat": chat})
    assert refused.value.details.field == "start.chat.messages[0].parts[1].audio"
    with pytest.raises(InvalidMediaError, match="not WAV"):  # nothing refuses it before its header is read
        plan_entry({"chat": chat, "modalities": [sampling_pb2.MODALITY_TRANSCRIPT]})


def test_fields_of_a_conversation_are_counted_before_they_are_parsed() -> None:
    def request(parts: int) -> bytes:
        turn = {"role": "user", "parts": [{"text": "a long enough text"}] * parts}
        return pb.GenerateRequest(start=pb.Start(conversation=[turn])).SerializeToString()

    assert has_too_many_fields(request(MAX_FIELDS + 1))
    assert not has_too_many_fields(request(1000))
    assert not is_light(pb.Start(conversation=[WRITTEN] * 65))
