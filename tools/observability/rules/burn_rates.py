"""Alerts on the error budgets of spec.objectives: several windows and burn rates, as in Google's SRE workbook.

The burn rate is the share of answers that miss an objective, divided by the share that may. A long window shows that
enough of the budget is gone; a short one, a twelfth of it, that the misses have not ended. The rates are those of table
5-8 of sre.google/workbook/alerting-on-slos, for a budget of 30 days. They assume a small budget: with 10 % of allowed
misses a burn rate of 14.4 could never be reached, so WORST bounds the share that each of them asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.observability.queries import of_pipeline

BY_OBJECTIVE = "namespace, pipeline, objective"
WORST = 0.9
"""Share of answers that is bad enough, whatever the budget is."""
LEAST = 10
"""Fewer answers in the long window say too little."""


@dataclass(frozen=True)
class Burn:
    """A burn rate that both windows must exceed."""

    rate: float
    long: str
    short: str


PAGE = (Burn(14.4, "1h", "5m"), Burn(6, "6h", "30m"))
"""2 % of 30 days' budget in an hour, 5 % in six hours."""
TICKET = (Burn(1, "3d", "6h"),)
"""10 % in three days."""


def grown(what: str, window: str, selector: str = "") -> str:
    """Returns PromQL for the number of answers or misses of each objective in a window. selector: of pipelines."""
    chosen = f"{{{selector}}}" if selector else ""
    series = of_pipeline(f"increase(omni_operator_objective_{what}_total{chosen}[{window}])")
    return f"sum by ({BY_OBJECTIVE}) ({series})"


def missed(window: str, selector: str = "") -> str:
    """Returns PromQL for the share of answers that missed each objective in a window."""
    return f"{grown('misses', window, selector)} / ({grown('answers', window, selector)} > 0)"


def allowed() -> str:
    """Returns PromQL for the share of answers that may miss each objective."""
    return f"max by ({BY_OBJECTIVE}) ({of_pipeline('omni_operator_objective_allowed_ratio')})"


def burns(burn: Burn) -> str:
    """Returns what follows `missed(burn.long)` in an alert on a burn rate."""
    least = f"clamp_max({burn.rate:g} * {allowed()}, {WORST})"
    return f"> {least} and {missed(burn.short)} > {least} and {grown('answers', burn.long)} >= {LEAST}"
