"""How values and legends are written in the picture of the dashboard."""

from __future__ import annotations

import math

import pytest
from observability.picture import format_value, name_line


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.25, "s", "250 ms"),
        (2.5, "s", "2.5 s"),
        (0.125, "percentunit", "12.5%"),
        (1536, "bytes", "1.5 KiB"),
        (3 << 30, "Bps", "3 GiB/s"),
        (5 << 40, "bytes", "5 TiB"),
        (2, "reqps", "2 req/s"),
        (7, "short", "7"),
        (math.nan, "s", "-"),
    ],
)
def test_units(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text


def test_legends() -> None:
    labels = {"__name__": "up", "stage": "talker", "code": "OK"}
    assert name_line("{{stage}}/{{code}} {{reason}}", labels) == "talker/OK"
    assert name_line("__auto", labels) == "talker, OK"
