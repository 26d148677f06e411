"""The order in which the outputs of one engine step are handled."""

from __future__ import annotations

from hypothesis import given, strategies as st

from omni_stage.service.edges.outbox import EARLY_STEPS
from omni_stage.vllm_adapter.scheduling.playback import FIRST_OUTPUTS, order_step

AGES = st.lists(st.integers(0, 3 * FIRST_OUTPUTS), max_size=20)


def test_it_covers_the_rows_that_are_sent_at_once() -> None:
    """The outputs that are handled first are exactly those whose rows `service/edges/outbox.py` sends immediately."""
    assert FIRST_OUTPUTS == EARLY_STEPS


@given(AGES)
def test_young_requests_come_first_and_all_else_keeps_its_order(ages: list[int]) -> None:
    numbers = list(range(len(ages)))
    ordered = order_step(numbers, ages.__getitem__)
    assert ordered == sorted(numbers, key=lambda number: (ages[number] >= FIRST_OUTPUTS, number))
