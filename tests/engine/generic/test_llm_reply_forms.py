"""generic/llm: structured output in a real engine, and tool calls through vLLM's own parsers.

The tiny model writes noise. Its text matches a form only because the engine masks all tokens that do not fit.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from omni_proto.stage_config import SamplingDefaults, StageConfig
from omni_stage.engine.factory import build_stage_engine
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import ConfigurationError, InvalidRequestError
from omni_stage.exchange import CalledTool, OfferedTool, StructuredText, ToolMode, Tools
from omni_stage.models.component import ChatMessage, FinishReason, StageRequest, StageStep, TextPart, UserPrompt
from support.engines.one_stage import collect, configure, running
from support.models.generic_checkpoint import write_tiny_text_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = OfferedTool("weather", "Looks at the sky.", CITY, strict=True)
CLOCK = OfferedTool(
    "clock", "Looks at the clock.", {"type": "object", "properties": {}, "additionalProperties": False}, strict=True
)
SAMPLING = SamplingDefaults(temperature=1.0, max_tokens=400)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_text_checkpoint(tmp_path_factory.mktemp("tiny-tools"), seed=3, tools=True)


def make_config(checkpoint: Path, **engine_args: Any) -> StageConfig:
    args = {"max_num_seqs": 8, "kv_cache_memory_mib": 64, "tool_call_parser": "hermes"}
    return configure("generic/llm", checkpoint, **{**args, **engine_args})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(checkpoint: Path) -> AsyncIterator[StageEngine]:
    async with running(make_config(checkpoint)) as engine:
        yield engine


def say(text: str = "hi") -> list[ChatMessage]:
    return [ChatMessage("user", [TextPart(text)])]


async def ask(engine: StageEngine, prompt: UserPrompt, *, seed: int = 0, **sampling: Any) -> list[StageStep]:
    chosen = SAMPLING.model_copy(update={"seed": seed, **sampling})
    return await collect(engine, StageRequest(f"r{seed}-{id(prompt)}", prompt, chosen))


def text_of(steps: list[StageStep]) -> str:
    return "".join(step.text for step in steps)


def calls_of(steps: list[StageStep]) -> list[tuple[str, Any]]:
    """Returns the name and the arguments of each tool call, with its pieces joined."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    for piece in (piece for step in steps for piece in step.tool_calls):
        names.setdefault(piece.index, piece.name)
        arguments[piece.index] = arguments.get(piece.index, "") + piece.arguments
    return [(names[index], json.loads(arguments[index])) for index in sorted(names)]


FORMS = {
    "choice": (StructuredText(choice=("yes", "no")), lambda text: text in ("yes", "no")),
    "regex": (StructuredText(regex="[0-9]{4}-[a-f]{2}"), lambda text: re.fullmatch("[0-9]{4}-[a-f]{2}", text)),
    "grammar": (StructuredText(grammar='root ::= "a" ("b" | "c") "d"'), lambda text: text in ("abd", "acd")),
    "json_schema": (
        StructuredText(json_schema=json.dumps(CITY)),
        lambda text: jsonschema.validate(json.loads(text), CITY) is None,
    ),
}


async def test_text_keeps_to_its_form_alone_and_together(engine: StageEngine) -> None:
    free = text_of(await ask(engine, UserPrompt(messages=say())))
    assert not any(form is not FORMS["json_schema"] and fits(free) for form, fits in list(FORMS.values())[:3])
    prompts = {name: UserPrompt(messages=say(), structured=form) for name, (form, _) in FORMS.items()}
    for name, prompt in prompts.items():
        steps = await ask(engine, prompt)
        assert FORMS[name][1](text_of(steps)), name
        assert steps[-1].finish_reason is FinishReason.STOP
    together = await asyncio.gather(*(ask(engine, prompts[name], seed=seed) for name in FORMS for seed in range(2)))
    for number, steps in enumerate(together):
        assert list(FORMS.values())[number // 2][1](text_of(steps))


async def test_any_json_object(engine: StageEngine) -> None:
    steps = await ask(engine, UserPrompt(messages=say(), structured=StructuredText(json_object=True)), max_tokens=40)
    text = text_of(steps)
    assert text.lstrip().startswith("{"), "noise would not"


@pytest.mark.parametrize(
    "form",
    [
        StructuredText(json_schema='{"type": "nonsense"}'),
        StructuredText(regex="(unclosed"),
        StructuredText(grammar="root ::= nothing"),
    ],
)
async def test_forms_that_are_none_are_refused(engine: StageEngine, form: StructuredText) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        await ask(engine, UserPrompt(messages=say(), structured=form))
    assert (caught.value.details.field or "").startswith("start.structured_output.")
    assert "unclosed" not in str(caught.value)


@pytest.mark.parametrize(
    ("tools", "allowed"),
    [
        (Tools((WEATHER, CLOCK), ToolMode.REQUIRED), {"weather", "clock"}),
        (Tools((WEATHER, CLOCK), ToolMode.REQUIRED, "weather"), {"weather"}),
    ],
    ids=["required", "named"],
)
async def test_tools_that_must_be_called_are(engine: StageEngine, tools: Tools, allowed: set[str]) -> None:
    for seed in range(3):
        steps = await ask(engine, UserPrompt(messages=say("Weather?"), tools=tools), seed=seed, max_tokens=1000)
        calls = calls_of(steps)
        assert {name for name, _ in calls} <= allowed
        assert calls
        for name, arguments in calls:
            jsonschema.validate(arguments, CITY if name == "weather" else CLOCK.parameters)
        assert text_of(steps).strip() == "", "a tool call is not also sent as text"
        ids = [piece.id for step in steps for piece in step.tool_calls if piece.id]
        assert len(ids) == len(set(ids)) == len(calls)


async def test_tools_come_piece_by_piece(engine: StageEngine) -> None:
    steps = await ask(engine, UserPrompt(messages=say(), tools=Tools((WEATHER,), ToolMode.REQUIRED, "weather")))
    pieces = [piece for step in steps for piece in step.tool_calls]
    assert len(pieces) > 2
    assert [bool(piece.name) for piece in pieces] == [True] + [False] * (len(pieces) - 1)


async def test_none_shows_no_tools_and_tool_messages_reach_the_template(engine: StageEngine) -> None:
    tools = (WEATHER,)
    none = await ask(engine, UserPrompt(messages=say(), tools=Tools(tools, ToolMode.NONE)), max_tokens=4)
    plain = await ask(engine, UserPrompt(messages=say()), max_tokens=4)
    shown = await ask(engine, UserPrompt(messages=say(), tools=Tools(tools)), max_tokens=4)
    assert none[0].prompt_token_ids == plain[0].prompt_token_ids
    assert len(shown[0].prompt_token_ids or ()) > len(plain[0].prompt_token_ids or ())
    history = [
        *say(),
        ChatMessage("assistant", [], (CalledTool("c1", "weather", {"city": "Rome"}),)),
        ChatMessage("tool", [TextPart("sunny")], tool_call_id="c1"),
    ]
    from transformers import AutoTokenizer

    steps = await ask(engine, UserPrompt(messages=history), max_tokens=4)
    tokenizer = AutoTokenizer.from_pretrained(engine.component.engine_kwargs()["model"])
    prompt = tokenizer.decode(steps[0].prompt_token_ids)
    assert '"arguments": {"city": "Rome"}' in prompt
    assert "<|im_start|>tool\nsunny<|im_end|>" in prompt


async def test_parsers_that_do_not_exist_are_named_at_start(checkpoint: Path) -> None:
    for field in ("tool_call_parser", "reasoning_parser"):
        with pytest.raises(ConfigurationError, match="known are") as caught:
            build_stage_engine(make_config(checkpoint, **{field: "nobody"}), in_process=True)
        assert caught.value.details.field in ("engineArgs.toolCallParser", "engineArgs.reasoningParser")
