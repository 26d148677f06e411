"""Which sampling parameters vLLM's tool parsers require, and when a strict tool is refused."""

from __future__ import annotations

import json

import pytest

from omni_stage.errors import InvalidRequestError
from omni_stage.reply_form import Tool, ToolMode, Tools
from omni_stage.vllm_adapter.text_parsers import TextParsers
from support.generic_checkpoint import THINK, TOOL_CALL, train_tokenizer

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}


def weather(*, strict: bool, mode: ToolMode = ToolMode.AUTO) -> Tools:
    return Tools((Tool("weather", "Looks at the sky.", SCHEMA, strict=strict),), mode)


def parsers(name: str) -> TextParsers:
    tokenizer = train_tokenizer()
    tokenizer.add_tokens([*TOOL_CALL, *THINK])
    return TextParsers(tokenizer, name, "")


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
