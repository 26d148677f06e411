"""Which cause is reported for a pod that does not run, given a pod status in the form that clusters write."""

from __future__ import annotations

import pytest

from omni_operator.state.container_causes import shorten_termination
from omni_operator.state.pod_causes import find_cause
from support.operator.pod_cases import POD_CASES
from support.operator.pod_statuses import NOW, said, stage_of
from support.tables import each_row


@each_row("name", POD_CASES)
def test_cause_of_a_pod(name: str) -> None:
    given, reason, words, hard = POD_CASES[name]
    cause = find_cause(stage_of(given), NOW)
    assert cause is not None
    assert cause.reason == reason
    assert cause.hard == hard
    for word in words:
        assert word in cause.message
    assert len(cause.message) <= 1024


@pytest.mark.parametrize(
    ("text", "parsed"),
    {
        "": ("", "", ""),
        "plain\n text": ("", "plain text", ""),
        "x" * 4096: ("", "x" * 200, ""),
        "[1]": ("", "", ""),
        '"text"': ("", "", ""),
        "null": ("", "", ""),
        '{"reason": 1, "message": []}': ("", "", ""),
        said("FetchFailed", "a\nb" + "c" * 4096, "model.uri"): ("FetchFailed", "a b" + "c" * 597, "model.uri"),
    }.items(),
    ids=range(8),
)
def test_termination_messages(text: str, parsed: tuple[str, str, str]) -> None:
    assert shorten_termination(text) == parsed
