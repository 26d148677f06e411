"""When the watchdog judges an engine to be stuck or dead."""

from __future__ import annotations

import pytest

from omni_stage.service.server.watchdog import EngineVerdict, judge


@pytest.mark.parametrize(
    ("is_dead", "unfinished", "age", "verdict"),
    [
        pytest.param(False, 0, 99, EngineVerdict.HEALTHY, id="idle is never stuck"),
        pytest.param(False, 1, 29, EngineVerdict.HEALTHY, id="slow"),
        pytest.param(False, 1, 31, EngineVerdict.STUCK, id="stuck"),
        pytest.param(True, 0, 0, EngineVerdict.DEAD, id="dead"),
    ],
)
def test_watchdog_verdicts(is_dead: bool, unfinished: int, age: float, verdict: EngineVerdict) -> None:
    assert judge(is_dead=is_dead, unfinished=unfinished, last_step=0, now=age, step_timeout_s=30) is verdict
