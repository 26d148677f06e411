"""Preparing a request has its own time limit. The watchdog does not count the preparation as work."""

from __future__ import annotations

import asyncio

import pytest

from omni_stage.engine.preparation import Preparation
from omni_stage.engine.work import WorkLedger
from omni_stage.errors import PrepareTimeoutError


async def test_who_is_being_prepared_is_no_work_and_ends_with_its_own_error() -> None:
    """A request in preparation is not counted by the ledger. After the limit it fails with PrepareTimeoutError."""
    ledger = WorkLedger()
    with ledger.open("a") as work:
        with pytest.raises(PrepareTimeoutError, match=r"timeouts\.prepare") as caught:
            await Preparation(work, 0.01).within(asyncio.Event().wait())
        assert len(ledger) == 0
    assert caught.value.details.limit == "0.01 s"


async def test_an_engine_may_take_longer_than_the_preparation() -> None:
    """The limit no longer applies once the engine core has the request."""
    ledger = WorkLedger()
    with ledger.open("a") as work:
        preparation = Preparation(work, 0.05)

        async def engine() -> str:
            preparation.submitted()
            await asyncio.sleep(0.1)
            return "output"

        assert await preparation.within(engine()) == "output"
        assert len(ledger) == 1
        assert await preparation.within(engine()) == "output"


async def test_an_engine_that_compiles_a_form_is_not_stuck() -> None:
    """While the engine compiles the form of a request's text, neither the limit nor the watchdog ends the request."""
    ledger = WorkLedger()
    with ledger.open("a") as work:
        preparation = Preparation(work, 0.05)

        async def engine() -> int:
            preparation.submitted(compiles=True)
            await asyncio.sleep(0.1)
            return len(ledger)

        assert await preparation.within(engine()) == 0


async def test_errors_and_cancels_of_what_is_awaited_pass() -> None:
    """Errors and cancellation of the awaited call are raised unchanged, even the call's own TimeoutError."""

    async def fail(error: BaseException) -> None:
        raise error

    with WorkLedger().open("a") as work:
        for error in (TimeoutError("of another"), ValueError(), asyncio.CancelledError()):
            with pytest.raises(type(error)) as caught:
                await Preparation(work, 5).within(fail(error))
            assert caught.value is error
        assert await Preparation(work, None).within(asyncio.sleep(0, "done")) == "done"
