"""The plan's pods, held against a simulation of the same pods."""

from __future__ import annotations

import pytest
from benchmarks.scaling.equal_gpus import Heard, gpus_of, hear

from omni_stage.models.sim.capacity import CapacityPlan, ObjectiveUnreachableError, Promise, Work, plan_capacity
from omni_stage.models.sim.tables import BUILT_IN, Table, read_table

NEAR = 1.15
"""The plan is right within 15 %."""
H100, L40S = "qwen2.5-omni-7b-h100", "qwen2.5-omni-7b-l40s"
CASES = {
    # table, requests a second, seconds of speech, first audio, seconds of arrivals
    "short answers": (H100, 6.0, 5.0, 0.3, 30.0),
    "a tight objective": (H100, 4.0, 10.0, 0.25, 30.0),
    "many pods": (H100, 12.0, 5.0, 0.3, 20.0),
    "batched windows": ("qwen3-omni-30b-a3b-h100", 3.0, 5.0, 0.6, 60.0),
    "gathered windows": ("qwen3-omni-30b-a3b-h200", 10.0, 10.0, 0.1, 20.0),
}


def plan(name: str, rate: float, speech_s: float, first_audio_s: float) -> tuple[Table, Work, CapacityPlan]:
    table, work = read_table(BUILT_IN / name), Work(rate, speech_s, prompt_tokens=50)
    return table, work, plan_capacity(table, work, Promise(first_audio_s))


def pods_of(found: CapacityPlan) -> dict[str, int]:
    return {stage: one.pods for stage, one in found.stages.items()}


@pytest.mark.parametrize(("name", "rate", "speech_s", "promised", "seconds"), CASES.values(), ids=CASES)
def test_the_plan_is_right_within_15_percent(
    name: str, rate: float, speech_s: float, promised: float, seconds: float
) -> None:
    table, work, found = plan(name, rate, speech_s, promised)
    pods = pods_of(found)

    def hears(rates: float, changed: dict[str, int]) -> Heard:
        return hear(table, work.times(rates), gpus_of(pods | changed), seconds)

    now = hears(1.0, {})
    assert found.first_audio_s == pytest.approx(now.first_audio_s, rel=NEAR - 1)
    assert hears(1 / NEAR, {}).keeps(promised), "its pods hold 1/1.15 of the rate"
    for stage, count in pods.items():
        if count > 1:
            assert not hears(NEAR, {stage: count - 1}).keeps(promised), (
                f"without a {stage}, 1.15 of the rate is too much"
            )


def test_more_requests_need_more_pods_of_the_bottleneck_only() -> None:
    few, many = (pods_of(plan(H100, rate, 10.0, 0.3)[2]) for rate in (2.0, 8.0))
    assert few["thinker"] == many["thinker"] == 1
    assert many["decoder"] > 3 * few["decoder"]


def test_the_target_is_what_a_pod_has_at_the_highest_rate() -> None:
    table, work, found = plan(H100, 6.0, 5.0, 0.3)
    assert found.most_rate >= work.rate
    again = plan_capacity(table, work.times(0.999 * found.most_rate / work.rate), Promise(0.3))
    assert pods_of(again) == pods_of(found)
    for stage in ("thinker", "talker"):
        assert again.stages[stage].requests <= (found.stages[stage].target_requests or 0)


@pytest.mark.parametrize(
    ("name", "promised", "said"),
    [(H100, 0.15, "however many pods"), (L40S, 5.0, "the speech of a single request has gaps")],
)
def test_what_no_number_of_pods_keeps(name: str, promised: float, said: str) -> None:
    with pytest.raises(ObjectiveUnreachableError, match=said):
        plan(name, 1.0, 10.0, promised)


def test_a_batch_that_the_engine_cannot_run_needs_more_pods() -> None:
    table = read_table(BUILT_IN / H100)
    wide, narrow = (plan_capacity(table, Work(10.0, 10.0, 50), Promise(0.3), limits) for limits in ({}, {"talker": 16}))
    assert pods_of(wide)["talker"] < pods_of(narrow)["talker"]
