"""How conditions are written: lastTransitionTime changes only if the condition turns from True to False or back.

An unchanged pipeline gets an unchanged status.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from omni_operator.reasons import Reason
from omni_operator.state.observed import Observed
from omni_operator.status.conditions import Verdict, bound, set_conditions
from omni_operator.status.status import compute_lost_status, refuse_spec
from omni_proto.pipeline.types.status import PipelineStatus

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


class TestConditions:
    """set_conditions, through which all conditions are written."""

    VERDICTS = {kind: Verdict(True, Reason.STARTING, "m") for kind in ("Ready", "Progressing", "Degraded")}

    def test_time_moves_only_when_the_status_flips(self) -> None:
        first = set_conditions([], self.VERDICTS, 1, NOW)
        later = NOW + timedelta(minutes=5)
        reworded = {**self.VERDICTS, "Ready": Verdict(True, Reason.UPDATING, "other")}
        second = set_conditions(first, reworded, 2, later)
        assert second[0]["lastTransitionTime"] == "2026-11-21T12:00:00Z"
        assert (second[0]["reason"], second[0]["message"], second[0]["observedGeneration"]) == ("Updating", "other", 2)
        third = set_conditions(second, {**self.VERDICTS, "Ready": Verdict(False, Reason.UPDATING, "")}, 2, later)
        assert third[0]["lastTransitionTime"] == "2026-11-21T12:05:00Z"
        assert third[1:] == [{**item, "observedGeneration": 2} for item in first[1:]]

    def test_messages_are_bounded(self) -> None:
        (ready, *_) = set_conditions([], {**self.VERDICTS, "Ready": Verdict(True, Reason.STARTING, "é" * 9999)}, 1, NOW)
        assert len(ready["message"].encode()) <= 1024
        assert ready["message"].endswith("...")
        assert bound("short") == "short"


class TestInvalidSpec:
    """The status of a pipeline whose spec is not understood, and of which no accepted spec is left."""

    METADATA: ClassVar[dict[str, Any]] = {"name": "demo", "namespace": "models", "uid": "u", "generation": 4}

    def test_nothing_is_there(self) -> None:
        refused = refuse_spec("spec.stages: too many")
        status = compute_lost_status(Observed({"metadata": self.METADATA}), refused, NOW)
        assert (status["readyStages"], status["stages"]) == ("0/0", [])
        reasons = {item["type"]: (item["status"], item["reason"]) for item in status["conditions"]}
        assert reasons == {
            "Ready": ("False", "InvalidSpec"),
            "Progressing": ("False", "InvalidSpec"),
            "Degraded": ("True", "InvalidSpec"),
            "SpecUnderstood": ("False", "InvalidSpec"),
            "Stalled": ("True", "InvalidSpec"),
        }
        assert "spec.stages: too many" in status["conditions"][0]["message"]
        PipelineStatus.model_validate(status)
        again = compute_lost_status(Observed({"metadata": self.METADATA, "status": status}), refused, NOW)
        assert again == status
