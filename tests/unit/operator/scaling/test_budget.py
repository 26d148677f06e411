"""What spec.objectives allows and what was used: counted from histograms, over restarts and changed promises."""

from __future__ import annotations

import math
from typing import Final

import pytest

from omni_kube.objects import NamespacedName
from omni_operator.process.metrics import Metrics, Readings
from omni_operator.scaling.budget import Budget, count_above, spend
from omni_operator.scaling.notes import ScaleNotes
from omni_operator.scaling.readings import Reading
from omni_proto.pipeline.types.scaling import Objectives
from omni_proto.pod_contract import StageMetric
from support.tables import each_row

BUCKETS: Final = {0.1: 10.0, 0.5: 50.0, 1.0: 90.0, math.inf: 100.0}
ROWS: Final = [(0.5, 50.0), (0.3, 70.0), (0.05, 95.0), (1.0, 10.0), (2.0, 0.0), (0.1, 90.0)]


@each_row("bound, above", ROWS, ids=[str(row[0]) for row in ROWS])
def test_answers_above_a_bound(bound: float, above: float) -> None:
    assert count_above(bound, BUCKETS) == pytest.approx(above)


def test_nothing_is_above_in_an_empty_histogram() -> None:
    assert count_above(1.0, {}) == 0.0


def reading(at: float, late: float, answers: float, spoken: tuple[float, float] = (0.0, 0.0)) -> Reading:
    buckets = {0.5: answers - late, 1.0: answers, math.inf: answers}
    return Reading(at, 0.0, 0.0, 1.0, {StageMetric.PIPELINE_FIRST_AUDIO_SECONDS: buckets}, spoken)


def test_misses_add_up_over_pods_and_readings() -> None:
    wanted = Objectives(first_audio_seconds=0.5, continuity=0.99, percentile=95)
    first = [(reading(0, 1, 100, (10, 9)), reading(15, 4, 160, (30, 28))), (reading(0, 0, 0), reading(15, 2, 10))]
    found = spend({}, wanted, first)
    assert found == {"firstAudioSeconds": Budget(0.05, 70, 5), "continuity": Budget(0.01, 20, 1)}
    # The container was restarted: its counters began again.
    found = spend(found, wanted, [(first[0][1], reading(30, 3, 20, (5, 5)))])
    assert found["firstAudioSeconds"] == Budget(0.05, 90, 8)
    assert found["continuity"] == Budget(0.01, 25, 1)


def test_another_promise_begins_a_new_count() -> None:
    pairs = [(reading(0, 0, 0), reading(15, 5, 10))]
    found = spend({}, Objectives(first_audio_seconds=0.5, percentile=95), pairs)
    found = spend(found, Objectives(first_audio_seconds=0.5, percentile=90), pairs)
    assert found == {"firstAudioSeconds": Budget(0.1, 10, 5)}
    assert spend(found, Objectives(first_text_seconds=1), []) == {"firstTextSeconds": Budget(0.05, 0, 0)}


def test_a_promise_of_all_answers_has_a_small_budget() -> None:
    found = spend({}, Objectives(continuity=1.0), [])
    assert found == {"continuity": Budget(0.001)}


def test_the_operator_exports_them() -> None:
    metrics = Metrics()
    notes = ScaleNotes(budgets={"continuity": Budget(0.01, 20, 1)})
    scale = [(NamespacedName("models", "demo"), notes)]
    metrics.add_readings(Readings(dict, tuple, lambda: 0, lambda: 0.0, lambda: scale))
    text = metrics.render()[0].decode()
    labels = 'objective="continuity",pipeline="demo",pipeline_namespace="models"'
    for name, value in (("answers_total", "20.0"), ("misses_total", "1.0"), ("allowed_ratio", "0.01")):
        assert f"omni_operator_objective_{name}{{{labels}}} {value}" in text.replace(
            'pipeline_namespace="models",pipeline="demo",objective="continuity"', labels
        )
