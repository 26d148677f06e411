"""The parts of a request with streamed input: their prompts and token budgets, and when the request ends.

No engine runs.
"""

from __future__ import annotations

from typing import Any

import pytest

from omni_proto.pipeline.components import ComponentFacts, EngineKind
from omni_proto.stage_config import SamplingDefaults
from omni_stage.engine.requests.lowering import PartPlan
from omni_stage.engine.requests.sampling import check_stage_sampling
from omni_stage.engine.work import WorkLedger
from omni_stage.errors import InvalidRequestError, ModelExecutionError
from omni_stage.models.component import EngineInput, FinishReason, InputPart
from omni_stage.models.manifest import describe

TEXT = describe(ComponentFacts(id="test/text", kind=EngineKind.AUTOREGRESSIVE, writes_text=True, streams_input=True))
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def part(max_tokens: int | None, last: bool = False) -> InputPart:
    return InputPart(EngineInput(prompt={"prompt_token_ids": [9, 9]}), max_tokens, last)


def test_later_parts_begin_with_the_last_token() -> None:
    """The prompt of a later part is only the last sampled token, whose KV has not been computed."""
    plan = PartPlan(10)
    first = plan.next(part(2))
    assert (first.input.prompt, first.max_tokens, first.last) == ({"prompt_token_ids": [9, 9]}, 2, False)
    assert plan.observe([5], None) is None
    assert plan.observe([6], LENGTH) is None
    second = plan.next(part(3))
    assert (second.input.prompt, second.max_tokens) == ({"prompt_token_ids": [6]}, 3)
    assert plan.observe([7, 8, 9], LENGTH) is None
    third = plan.next(part(None, last=True))
    assert (third.input.prompt, third.max_tokens, third.last) == ({"prompt_token_ids": [9]}, 5, True)
    assert plan.observe([1, 2, 3, 4, 5], LENGTH) is LENGTH


# name: (token budget, part, its sampled tokens, its finish reason, the request's finish reason or None)
ENDS: dict[str, tuple[int, InputPart, list[int], FinishReason, FinishReason | None]] = {
    "a part's tokens are written": (10, part(2), [1, 2], LENGTH, None),
    "a stop token": (10, part(2), [1], STOP, STOP),
    "a stop token as the part's last": (10, part(2), [1, 2], STOP, STOP),
    "the budget": (2, part(5), [1, 2], LENGTH, LENGTH),
    "the budget, exactly the part": (2, part(2), [1, 2], LENGTH, LENGTH),
    "the engine's longest sequence": (10, part(5), [1, 2], LENGTH, LENGTH),
    "the last part": (10, part(None, last=True), [1], STOP, STOP),
}


@pytest.mark.parametrize("case", ENDS)
def test_how_a_part_ends(case: str) -> None:
    budget, given, tokens, part_ended, expected = ENDS[case]
    plan = PartPlan(budget)
    plan.next(given)
    assert plan.observe(tokens, part_ended) is expected


def test_a_part_that_may_use_the_budget_up_is_the_last() -> None:
    assert PartPlan(4).next(part(4)).last
    assert not PartPlan(5).next(part(4)).last


def test_one_part_at_a_time() -> None:
    plan = PartPlan(4)
    plan.next(part(1))
    with pytest.raises(ModelExecutionError, match="had ended"):
        plan.next(part(1))


REFUSED: dict[str, Any] = {"min_tokens": 1, "presence_penalty": 0.1, "frequency_penalty": -0.1, "stop": ["."]}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_on_streamed_input(name: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"{name} cannot be honoured") as caught:
        check_stage_sampling(
            SamplingDefaults(**{name: REFUSED[name]}), TEXT, is_streamed=True, field="start.sampling[talker]"
        )
    assert caught.value.details.field == f"start.sampling[talker].{name}"


def test_neutral_values_pass() -> None:
    check_stage_sampling(
        SamplingDefaults(
            min_tokens=0, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.2, seed=1, temperature=1.0
        ),
        TEXT,
        is_streamed=True,
    )


def test_a_request_that_waits_for_its_upstream_is_no_work() -> None:
    """The ledger counts a request only while the engine core has something to compute for it."""
    ledger = WorkLedger()
    with ledger.open("a") as work:
        assert len(ledger) == 0, "the core has nothing to compute yet"
        work.begin()
        assert len(ledger) == 1
        work.rest()
        assert len(ledger) == 0
        before, ledger.last_step = ledger.last_step, 0.0
        work.begin()
        work.begin()
        assert len(ledger) == 1
        assert ledger.last_step >= before, "the watchdog's clock restarts when work begins"
        with pytest.raises(InvalidRequestError, match="in use"), ledger.open("a"):
            pass
    assert len(ledger) == 0
