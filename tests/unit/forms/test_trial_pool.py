"""Forms are tried with a vocabulary of 150,000 tokens, in a process that is killed and replaced as needed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from omni_proto.runtime.limits import Client
from omni_stage.errors import InvalidRequestError
from omni_stage.forms import trial_pool
from omni_stage.forms.trial import Form
from omni_stage.forms.trial_pool import TrialPool
from support.forms import many_tokens
from support.processes.polling import PATIENCE_S

pytestmark = pytest.mark.asyncio(loop_scope="module")
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}, "n": {"type": "integer"}}, "required": ["a"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool() -> AsyncIterator[TrialPool]:
    info = many_tokens().serialize_json().encode()

    async def describe() -> bytes:
        return info

    made = TrialPool(describe)
    yield made
    made.close()


@pytest.mark.parametrize(
    "form",
    [
        Form("json_object", ""),
        Form("json", json.dumps(SCHEMA)),
        Form("json", json.dumps({"type": "array", "maxItems": 50, "items": SCHEMA})),
        Form("json", json.dumps({"enum": [f"choice {number}" for number in range(1000)]})),
        Form("regex", r"\d{4}-\d{2}-\d{2}"),
        Form("regex", r"(\w+,){1,5}"),
        Form("grammar", 'root ::= expr\nexpr ::= term (" + " term)*\nterm ::= [0-9]+ | "(" expr ")"'),
    ],
)
async def test_ordinary_forms_pass(pool: TrialPool, form: Form) -> None:
    await pool.check(form, caller=Client("one"), field="start.structured_output")


@pytest.mark.parametrize(
    "form",
    [
        Form("regex", "(((a){0,1000}){0,1000}){0,1000}b"),
        Form("json", json.dumps({"type": "string", "pattern": "(((a){0,1000}){0,1000}){0,1000}b"})),
        Form("regex", "((a){0,90}){0,90}b"),
        Form("regex", "[xy]{30}((a){0,90}){0,90}b"),
        Form("regex", r"(\w+ ?){1,20}"),
        Form("regex", "([a-z]{0,30}[0-9]{0,30}){0,20}x"),
        Form("grammar", "root ::= root"),
        Form("grammar", 'root ::= "a" | "b" x\nx ::= "c" x'),
        Form("grammar", "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000),
    ],
)
async def test_forms_that_cost_too_much_or_fit_nothing_are_refused(pool: TrialPool, form: Form) -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match="the form of structured output cannot be used") as refused:
            await pool.check(form, caller=Client("one"), field="start.structured_output")
        assert refused.value.details.field == "start.structured_output"


async def test_a_caller_who_left_ends_the_trial(pool: TrialPool) -> None:
    slow = Form("regex", "[a-z]{0,2000}")
    leavers = [asyncio.create_task(pool.check(slow, caller=Client("one"), field="f")) for _ in range(2)]
    await asyncio.sleep(0.2)
    for leaver in leavers:
        leaver.cancel()
        with suppress(asyncio.CancelledError, InvalidRequestError):
            await leaver
    await pool.check(Form("regex", "[a-z]+"), caller=Client("two"), field="f")


@pytest.mark.parametrize("read", [True, False], ids=["while the form is tried", "before the form is read"])
async def test_a_form_is_not_blamed_for_good_when_the_process_ends(pool: TrialPool, read: bool) -> None:
    """Another form may have ended it, so the next request tries the form again."""
    # Slow enough to be on trial half a second later, and cheap enough to be accepted.
    process, form = await pool._started(), Form("json", json.dumps({"type": "string", "maxLength": 60 + read}))
    if not read:
        os.kill(process._process.pid, signal.SIGSTOP)
    asked = asyncio.create_task(pool.check(form, caller=Client("one"), field="f"))
    while not process._answers and not asked.done():  # noqa: ASYNC110 - nothing says when the form was sent
        await asyncio.sleep(0.01)
    os.kill(process._process.pid, signal.SIGKILL)
    with pytest.raises(InvalidRequestError, match="of CPU time to compile"):
        await asked
    await pool.check(form, caller=Client("one"), field="f")


async def test_a_process_that_ended_is_replaced(pool: TrialPool) -> None:
    process = await pool._started()
    os.kill(process._process.pid, signal.SIGKILL)
    await asyncio.wait_for(asyncio.shield(process._reader or asyncio.sleep(0)), PATIENCE_S)
    await pool.check(Form("regex", "[a-y]+"), caller=Client("one"), field="f")
    assert await pool._started() is not process


@pytest.mark.parametrize(("cached_bytes", "trials"), [(1 << 30, 2), (1, 4)])
async def test_a_form_that_the_engine_may_have_forgotten_is_tried_again(
    pool: TrialPool, cached_bytes: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine compiles it again, in order of arrival. So its caller waits for a turn first."""
    monkeypatch.setattr(trial_pool, "CACHED_BYTES", cached_bytes)
    before = (await pool._started())._number
    for text in ("a+", "b+", "a+", "b+"):
        form = Form("regex", f"{trials}{text}")
        await pool.check(form, caller=Client("one"), field="start.structured_output")
    assert (await pool._started())._number - before == trials
