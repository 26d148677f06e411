"""EventGate keeps Events few: it combines equal ones and limits how many a flapping pipeline gets per hour."""

from __future__ import annotations

from omni_operator.status.events import EventData, EventGate

DOWN, UP = EventData("Warning", "Down", "it is down"), EventData("Normal", "Up", "it is up")


def test_equal_events_are_combined() -> None:
    """Equal Events within pause_s are only counted. The first equal Event after pause_s carries the count."""
    gate = EventGate(pause_s=60.0)
    assert gate.admit("u", DOWN, 0.0) == DOWN
    assert [gate.admit("u", DOWN, float(second)) for second in range(1, 60)] == [None] * 59
    assert gate.admit("u", UP, 30.0) == UP, "another Event is published immediately"
    assert gate.admit("other", DOWN, 30.0) == DOWN, "so is an Event of another pipeline"
    again = gate.admit("u", DOWN, 61.0)
    assert again is not None
    assert again.count == 60


def test_events_of_a_pipeline_are_limited_per_hour() -> None:
    """A pipeline may have `most` Events in a burst, and `most` per hour after it."""
    gate = EventGate(max_events=5)

    def told(since_s: float) -> int:
        events = [EventData("Warning", "Flaps", f"at {since_s + number}") for number in range(100)]
        return sum(gate.admit("u", event, since_s + number / 100) is not None for number, event in enumerate(events))

    assert told(0.0) == 5
    assert told(720.0) == 1
    assert told(7200.0) == 5
    assert gate.admit("other", UP, 7200.0) == UP


def test_what_it_remembers_is_bounded() -> None:
    gate = EventGate(limit=10)
    for number in range(1000):
        gate.admit(f"u{number}", DOWN, 0.0)
    assert len(gate._equal) <= 10
    assert len(gate._budgets) <= 10
