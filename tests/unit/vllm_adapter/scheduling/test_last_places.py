"""Which waiting requests may take the last places in the engine's steps."""

from __future__ import annotations

import pytest

from omni_stage.vllm_adapter.scheduling.last_places import OTHERS_S, LastPlaces


@pytest.mark.parametrize(
    ("places", "late_s", "running", "other_s", "admitted"),
    [
        pytest.param(8, 4.0, 6, 1.0, True, id="places are left"),
        pytest.param(8, 4.0, 7, 1.0, False, id="the last eighth is for others"),
        pytest.param(8, 3.0, 7, 1.0, True, id="a client with less than half"),
        pytest.param(8, 0.0, 7, 1.0, True, id="a client without other requests"),
        pytest.param(8, 4.0, 7, None, True, id="nobody else calls"),
        pytest.param(8, 4.0, 7, OTHERS_S + 1, True, id="nobody else has called for long"),
        pytest.param(256, 200.0, 223, 1.0, True, id="many places"),
        pytest.param(256, 200.0, 224, 1.0, False, id="all but an eighth of many places"),
        pytest.param(7, 6.0, 6, 1.0, True, id="an eighth is less than a place"),
    ],
)
def test_who_may_run(places: int, late_s: float, running: int, other_s: float | None, admitted: bool) -> None:
    """late_s: of the request. other_s: how many seconds ago a request of another client came."""
    found = LastPlaces(places)
    found.add("first", 1.0, 0.0)
    if other_s is not None:
        found.add("other", 0.0, 100.0 - other_s)
    found.add("this", late_s, 100.0)
    assert found.admits("this", running, 100.0) is admitted


def test_a_lone_clients_next_request_is_not_another_clients() -> None:
    found = LastPlaces(8)
    for name in ("a", "b", "c"):
        found.add(name, 1.0, 0.0)
        found.remove(name)
    found.add("next", 0.0, 1.0)
    found.add("late", 7.0, 1.0)
    assert found.admits("late", 7, 1.0)
