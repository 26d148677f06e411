"""What a streamed chat answer reports about each stage of the pipeline."""

from __future__ import annotations

from omni_gateway.openai.chat_events import stage_facts
from omni_proto.client import Accepted, StageFinished, StageTimings, Usage


def test_facts_of_an_accepting_stage() -> None:
    facts = stage_facts(Accepted("talker", "id", 1_700_000_000_123_456_789))
    assert facts == {"name": "talker", "event": "accepted", "accepted_unix_ms": 1_700_000_000_123.4568}


def test_stage_times_are_in_ms_and_missing_events_are_omitted() -> None:
    timings = StageTimings(accepted_unix_ns=2_000_000, first_output_ns=1_500_000, finished_ns=9_999_999, step_ns=(1, 2))
    facts = stage_facts(StageFinished("thinker", "stop", "", Usage(), timings))
    assert facts == {
        "name": "thinker",
        "event": "finished",
        "finish_reason": "stop",
        "timings": {"accepted_unix_ms": 2.0, "first_output": 1.5, "finished": 10.0},
    }
