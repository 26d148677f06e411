"""vLLM's parsers: what a request costs, the sampling parameters they require, and when a strict tool is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from omni_stage.errors import ConfigurationError, InvalidRequestError
from omni_stage.exchange import OfferedTool, ToolMode, Tools
from omni_stage.vllm_adapter.text_parsers import TextParsers, split_piece
from support.models.generic_checkpoint import THINK, TOOL_CALL, train_tokenizer
from support.tables import each_row

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}


def weather(*, strict: bool, mode: ToolMode = ToolMode.AUTO) -> Tools:
    return Tools((OfferedTool("weather", "Looks at the sky.", SCHEMA, strict=strict),), mode)


def tokenizer_with_tools() -> Any:
    tokenizer = train_tokenizer()
    tokenizer.add_tokens([*TOOL_CALL, *THINK])
    return tokenizer


def parsers(name: str) -> TextParsers:
    return TextParsers(tokenizer_with_tools(), name, "")


@pytest.mark.parametrize(
    ("tool_parser", "reasoning_parser", "field"),
    [("openai", "", "toolCallParser"), ("", "openai_gptoss", "reasoningParser")],
)
def test_parsers_of_harmony_are_refused_at_start(tool_parser: str, reasoning_parser: str, field: str) -> None:
    """These parsers would fail at every request: for gpt-oss, vLLM's server uses other code in their place."""
    with pytest.raises(ConfigurationError, match="harmony") as caught:
        TextParsers(tokenizer_with_tools(), tool_parser, reasoning_parser)
    assert caught.value.details.field == f"engineArgs.{field}"


def test_requests_do_not_build_the_vocabulary_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers needs 130 ms to build a vocabulary of Qwen3's size, and holds the interpreter's lock meanwhile."""
    tokenizer, built = tokenizer_with_tools(), []
    build = type(tokenizer).get_vocab
    monkeypatch.setattr(type(tokenizer), "get_vocab", lambda self: built.append(self) or build(self))
    texts = TextParsers(tokenizer, "qwen3_coder", "qwen3")
    built.clear()
    assert texts.open(weather(strict=False), None) is not None
    assert texts.open(None, None) is not None
    assert built == []


def test_a_strict_tool_that_may_be_called_holds_its_calls_to_the_schema() -> None:
    parse = parsers("hermes").open(weather(strict=True), None)
    assert parse is not None
    tag = json.loads(parse.sampling["structured_outputs"].structural_tag)
    assert '"enum": ["Rome"]' in json.dumps(tag)
    free = parsers("hermes").open(weather(strict=False), None)
    assert free is not None
    assert "structured_outputs" not in free.sampling


def test_a_strict_tool_needs_a_parser_that_can_enforce_it() -> None:
    """A strict tool is refused if the parser cannot enforce its schema."""
    pythonic = parsers("pythonic")
    with pytest.raises(InvalidRequestError, match="'weather' is strict"):
        pythonic.open(weather(strict=True), None)
    assert pythonic.open(weather(strict=False), None) is not None
    assert pythonic.open(weather(strict=True, mode=ToolMode.NONE), None) is not None


def answer(parser: str, text: str, *, size: int, reasoning: str = "") -> tuple[str, list[list[str]]]:
    """Returns the text and the calls [name, arguments] of an answer that is fed `size` tokens at a time."""
    tokenizer = tokenizer_with_tools()
    parse = TextParsers(tokenizer, parser, reasoning).open(weather(strict=False), None)
    assert parse is not None
    ids, written, calls = tokenizer.encode(text, add_special_tokens=False), "", {}
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        prompt = None if start else [1]
        parsed = parse.feed(tokenizer.decode(piece), piece, prompt, finished=start + size >= len(ids))
        written += parsed.text
        for call in parsed.tool_calls:
            name, arguments = calls.get(call.index, ("", ""))
            calls[call.index] = [name + call.name, arguments + call.arguments]
    return written, list(calls.values())


CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
CALLED = [["weather", '{"city": "Rome"}']]


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize(
    ("parser", "text", "expected"),
    [
        ("hermes", "Is x <", ("Is x <", [])),
        ("hermes", "Is x < 5?", ("Is x < 5?", [])),
        ("hermes", f"Well. <tool_call>\n{CALL}\n</tool_call>", ("Well. ", CALLED)),
        ("pythonic", "[1, 2] is a list", ("[1, 2] is a list", [])),
        ("pythonic", "[weather(city='Rome')]", ("", CALLED)),
        ("phi4_mini_json", "Hello, how are you?", ("Hello, how are you?", [])),
        ("phi4_mini_json", f"functools[{CALL}]", ("", CALLED)),
    ],
)
def test_no_text_is_lost_that_vllm_keeps_in_whole_answers(
    parser: str, text: str, size: int, expected: tuple[str, list[list[str]]]
) -> None:
    """vLLM's streaming parsers withhold text that could begin a call; some of them never return it."""
    assert answer(parser, text, size=size) == expected


@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("reasoning", ["qwen3", "deepseek_r1"])
@pytest.mark.parametrize(("text", "expected"), [("Hm", ""), ("Hm</think>Well <", "Well <")])
def test_reasoning_is_not_repeated_as_text(text: str, expected: str, reasoning: str, size: int) -> None:
    assert answer("hermes", text, size=size, reasoning=reasoning) == (expected, [])


TWO = '{"name": "weather", "arguments": {"city": "Rome"}}', '{"name": "light", "arguments": {"a": {"b": [1, "}"]}}}'
CALLS = {
    "hermes": f"Well. <tool_call>\n{TWO[0]}\n</tool_call><tool_call>\n{TWO[1]}\n</tool_call>",
    "pythonic": "[weather(city='Rome'), light(a=1, b=[2, 3])]",
    "xlam": f"[{TWO[0]}, {TWO[1]}]",
    "granite-20b-fc": f"<function_call> {TWO[0]} <function_call> {TWO[1]}",
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
}


@each_row(
    "parser, text", [(parser, text[:end]) for parser, text in CALLS.items() for end in (*range(9, len(text), 9), None)]
)
def test_calls_do_not_depend_on_how_many_tokens_come_at_once(parser: str, text: str) -> None:
    """Also of an answer that its maximum length cut. vLLM's parsers would join the arguments of two calls."""
    assert [answer(parser, text, size=size) for size in (2, 5, 9, 1000)] == [answer(parser, text, size=1)] * 4


@each_row("text", ["Hi Bob", "na\u00efve \U0001f600!", " a <tool_call>\n{", "  \n\u65e5\u672c\u8a9e"])
def test_a_piece_is_split_into_its_tokens(text: str) -> None:
    tokenizer = tokenizer_with_tools()
    ids = tokenizer.encode(text, add_special_tokens=False)
    found = split_piece(text, ids, tokenizer.decode)
    assert [one for _, own in found for one in own] == ids
    assert "".join(said for said, _ in found) == text
    assert [said for said, _ in found] == [tokenizer.decode(own) for _, own in found]
    assert all(len(own) == 1 or len(said) == 1 for said, own in found), "only parts of a character stay together"
    cut = split_piece(text[:-1], ids, tokenizer.decode)  # a stop string ended the text
    assert ("".join(said for said, _ in cut), [one for _, own in cut for one in own]) == (text[:-1], ids)
