"""Days of traffic: the designed one, days that a seed draws, and traffic that was recorded. Requests per second."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

DAY_S: Final = 86_400
BURSTS: Final = ((6 * 3600, 600, 1.6), (13 * 3600 + 900, 300, 2.0), (20 * 3600, 1200, 1.5))
"""Start, length in seconds and factor of each burst of the designed day."""
RECORDED: Final = Path(__file__).with_name("recorded.json")
MEAN_RATE: Final = 60.0
"""Mean rate to which recorded traffic is scaled."""
_WANDER_S: Final = 300

RateAt = Callable[[int], float]
"""Returns the requests per second at a second."""


def day_rate(second: int) -> float:
    """The designed day: a dead hour, a popular hour, and three sudden bursts."""
    hour = second / 3600
    rate = 60.0 + 45.0 * math.sin(math.pi * (hour - 9.0) / 12.0)
    if 3.0 <= hour < 4.0:
        rate *= max(0.01, 1.0 - 6.0 * min(hour - 3.0, 4.0 - hour))
    if 18.0 <= hour < 19.0:
        rate *= 1.0 + 0.6 * math.sin(math.pi * (hour - 18.0))
    for start, length, factor in BURSTS:
        if start <= second < start + length:
            rate *= factor
    return rate


def drawn_day(seed: int) -> RateAt:
    """Returns a day whose level, peak, dead hours and bursts a seed draws, and whose rate wanders in between."""
    draw = random.Random(seed)
    mean, swing, peak_h = draw.uniform(20.0, 80.0), draw.uniform(0.3, 0.85), draw.uniform(0.0, 24.0)
    dead_h, dead_hours = draw.uniform(0.0, 22.0), draw.uniform(0.5, 2.0)
    bursts = [
        (draw.randrange(DAY_S), draw.randrange(120, 1800), draw.uniform(1.2, 2.2)) for _ in range(draw.randrange(2, 7))
    ]
    wander = [0.0]
    while len(wander) <= DAY_S // _WANDER_S + 1:
        wander.append(0.9 * wander[-1] + draw.gauss(0.0, 0.03))

    def rate_at(second: int) -> float:
        hour = second / 3600
        rate = mean * (1.0 + swing * math.cos(math.pi * (hour - peak_h) / 12.0))
        at, part = divmod(second, _WANDER_S)
        rate *= 1.0 + wander[at] + (wander[at + 1] - wander[at]) * part / _WANDER_S
        if dead_h <= hour < dead_h + dead_hours:
            rate *= 0.1
        for start, length, factor in bursts:
            if start <= second < start + length:
                rate *= factor
        return rate

    return rate_at


def recorded_traffic() -> dict[str, tuple[RateAt, int]]:
    """Returns each recorded hour or day, scaled to MEAN_RATE, and its seconds."""
    found: dict[str, tuple[RateAt, int]] = {}
    for name, one in json.loads(RECORDED.read_text(encoding="utf-8"))["spans"].items():
        counts, span_s = one["counts"], one["seconds"]
        rates = [count * MEAN_RATE * len(counts) / sum(counts) for count in counts]
        found[name] = _replay(rates, span_s), span_s * len(rates)
    return found


def _replay(rates: list[float], span_s: int) -> RateAt:
    """Returns the rate of recorded spans, between which it moves linearly; the last one stays."""

    def rate_at(second: int) -> float:
        at, part = divmod(second, span_s)
        if at + 1 >= len(rates):
            return rates[-1]
        return rates[at] + (rates[at + 1] - rates[at]) * part / span_s

    return rate_at
