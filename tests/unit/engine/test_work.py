"""The watchdog counts a request only while the engine has its input and the caller waits for a step."""

from __future__ import annotations

import pytest

from omni_stage.engine.work import WorkLedger
from omni_stage.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("notes", "busy"),
    [
        pytest.param([], 0, id="being prepared"),
        pytest.param(["begin"], 1, id="submitted"),
        pytest.param(["begin", "lend"], 0, id="its caller has a step, and may pause for minutes"),
        pytest.param(["begin", "lend", "take_back"], 1, id="its caller asks for the next step"),
        pytest.param(["begin", "rest"], 0, id="it waits for streamed input"),
        pytest.param(["begin", "rest", "lend", "begin"], 0, id="more input arrives while the caller has a step"),
        pytest.param(["begin", "rest", "lend", "begin", "take_back"], 1, id="then the caller asks for the next step"),
        pytest.param(["begin", "rest", "lend", "take_back"], 0, id="the caller asks before more input arrives"),
    ],
)
def test_when_a_request_counts(notes: list[str], busy: int) -> None:
    ledger = WorkLedger()
    with ledger.open("a") as work:
        for note in notes:
            getattr(work, note)()
        assert len(ledger) == busy
    assert len(ledger) == 0


def test_time_restarts_when_somebody_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller's pause that is longer than the step timeout does not count as a step that takes too long."""
    now = 100.0
    monkeypatch.setattr("omni_stage.engine.work.time.monotonic", lambda: now)
    ledger = WorkLedger()
    with ledger.open("a") as work:
        work.begin()
        ledger.note_step()
        work.lend()
        now = 200.0
        work.take_back()
        assert ledger.last_step == 200.0


def test_an_id_is_used_once_at_a_time() -> None:
    ledger = WorkLedger()
    with ledger.open("a"), pytest.raises(InvalidRequestError, match="in use"), ledger.open("a"):
        pass
    with ledger.open("a"):
        pass
