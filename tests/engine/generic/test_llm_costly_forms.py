"""generic/llm with a vocabulary of 150,000 tokens: forms that cost too much end their own request, and no other."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.protocol import StageEngine
from omni_stage.errors import InvalidRequestError
from omni_stage.exchange import OfferedTool, StructuredText, ToolMode, Tools
from omni_stage.models.component import ChatMessage, StageRequest, TextPart, UserPrompt
from support.engines.one_stage import collect, configure, running
from support.models.generic_checkpoint import write_tiny_text_checkpoint

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StageEngine]:
    checkpoint = write_tiny_text_checkpoint(tmp_path_factory.mktemp("large"), tools=True, large=True)
    args = {"max_num_seqs": 8, "kv_cache_memory_mib": 64, "tool_call_parser": "hermes", "max_model_len": 2048}
    async with running(configure("generic/llm", checkpoint, **args)) as engine:
        yield engine


async def ask(engine: StageEngine, name: str, form: StructuredText | None, tools: Tools | None = None) -> str:
    source = UserPrompt(messages=[ChatMessage("user", [TextPart("hi")])], structured=form, tools=tools)
    # The end of the text is as likely as any other token: keep the slow form from ending early.
    least, most = (400, 400) if name == "slow" else (0, 60)
    sampling = SamplingDefaults(temperature=1.0, max_tokens=most, min_tokens=least, seed=1)
    return "".join(step.text for step in await collect(engine, StageRequest(name, source, sampling)))


async def test_a_form_that_becomes_slow_ends_only_its_own_request(engine: StageEngine) -> None:
    """An ambiguous grammar: it passes the trial, and each token then costs more than the one before."""
    slow = asyncio.create_task(ask(engine, "slow", StructuredText(grammar='root ::= root root root | "a" | ""')))
    well_behaved = [asyncio.create_task(ask(engine, f"honest-{number}", None)) for number in range(3)]
    with pytest.raises(InvalidRequestError, match="CPU time"):
        await slow
    assert all(await asyncio.gather(*well_behaved))
    assert await ask(engine, "choice", StructuredText(choice=("yes", "no"))) in ("yes", "no")


@pytest.mark.parametrize(
    "form",
    [
        StructuredText(regex="(((a){0,1000}){0,1000}){0,1000}b"),
        StructuredText(json_schema=json.dumps({"type": "string", "pattern": "(((a){0,1000}){0,1000}){0,1000}b"})),
        StructuredText(json_schema='{"$ref": "#"}'),
        StructuredText(grammar="root ::= root"),
        StructuredText(regex="(?i)abc"),
        StructuredText(json_schema=json.dumps({"allOf": [{"type": "object"}, {"required": ["a"]}]})),
    ],
)
async def test_refused_forms_change_nothing_for_later_requests(engine: StageEngine, form: StructuredText) -> None:
    """The first form of an engine must not choose what enforces the later ones."""
    with pytest.raises(InvalidRequestError) as refused:
        await ask(engine, "refused", form)
    assert refused.value.details.field == f"start.structured_output.{form.kind}"
    assert re.fullmatch("[ab]{3}", await ask(engine, "honest", StructuredText(regex="[ab]{3}")))


async def test_only_the_parameters_of_tools_that_are_enforced_are_refused(engine: StageEngine) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer", "multipleOf": 2}}, "required": ["x"]}
    tool = OfferedTool("double", "Doubles.", parameters)
    await ask(engine, "shown", None, Tools((tool,), ToolMode.AUTO))
    with pytest.raises(InvalidRequestError, match="multipleOf") as refused:
        await ask(
            engine, "forced", None, Tools((OfferedTool("double", "Doubles.", parameters, strict=True),), ToolMode.AUTO)
        )
    assert refused.value.details.field == "start.chat.tools"
