"""The alerts on pipelines: what their clients get, and whether they serve at all.

Those on the error budgets of spec.objectives have several windows and burn rates, as in Google's SRE workbook. The burn
rate is the share of answers that miss an objective, divided by the share that may. A long window shows that enough of
the budget is gone; a short one, a twelfth of it, that the misses have not ended. The rates are those of table 5-8 of
sre.google/workbook/alerting-on-slos, for a budget of 30 days. They assume a small budget: with 10 % of allowed misses a
burn rate of 14.4 could never be reached, so WORST bounds the share that each of them asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

from tools.observability.queries import (
    BY_PIPELINE,
    FAULTS,
    REFUSALS,
    enough,
    of_pipeline,
    quantile,
    rate,
    ratio,
)
from tools.observability.rules.rule import Alert, Group

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


_CONDITION = "omni_operator_pipeline_condition"


def condition_of(condition: str, besides: str = "") -> str:
    """Returns PromQL with 1 or 0 for each pipeline: whether the condition is True.

    besides: pattern of reasons to leave out. `max` merges the equal series of the operator's replicas. The label
    `namespace` of the result is the pipeline's namespace.
    """
    selector = f'condition="{condition}"' + (f', reason!~"{besides}"' if besides else "")
    return f"max by ({BY_PIPELINE}) ({of_pipeline(f'{_CONDITION}{{{selector}}}')})"


WHICH = "{{ $labels.namespace }}/{{ $labels.pipeline }}"

PIPELINES = Group(
    "omnipipeline-pipelines",
    [
        Alert(
            name="OmniPipelineNotReady",
            # A refused spec is reported by OmniPipelineDegraded.
            signal=condition_of("Ready", "Suspended|Suspending|ScaledToZero|InvalidSpec|TooManyPipelines|Terminating"),
            fires="== 0",
            wait="15m",
            severity="critical",
            when="no revision of a pipeline has a ready pod in every stage; pipelines that are suspended, or that the "
            "operator refuses, are left out",
            summary=f"Pipeline {WHICH} is not ready.",
            description=f"No revision of {WHICH} has had a ready pod in every stage for 15 minutes: requests fail. "
            "Its status names the cause: omnipipe status {{ $labels.pipeline }} -n {{ $labels.namespace }}.",
        ),
        Alert(
            name="OmniPipelineDegraded",
            signal=condition_of("Degraded"),
            fires="== 1",
            wait="15m",
            severity="warning",
            when="a part of a pipeline failed, though it may still serve",
            summary=f"Pipeline {WHICH} is degraded.",
            description=f"A part of {WHICH} has failed for 15 minutes, though it may still serve: a replica is "
            "missing, a rollout is stuck, or an object is refused. Its status names the cause.",
        ),
        Alert(
            name="OmniPipelineErrorRatioHigh",
            signal=ratio(
                rate(f'omni_pipeline_requests_total{{code=~"{FAULTS}"}}', BY_PIPELINE, "5m"),
                rate("omni_pipeline_requests_total", BY_PIPELINE, "5m"),
            ),
            fires="> 0.05",
            floor=enough("omni_pipeline_requests_total", BY_PIPELINE, "5m", 20),
            wait="5m",
            severity="critical",
            when="more than 5 % of a pipeline's requests, of at least 20, end with a code that counts as its fault, "
            "over 5 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the requests to {WHICH} fail.",
            description=f"More than 5 % of the requests to {WHICH} have ended with a code that counts as the "
            "pipeline's fault, for 5 minutes. Refusals for lack of capacity (RESOURCE_EXHAUSTED) do not count.",
        ),
        Alert(
            name="OmniPipelineRefusesRequests",
            signal=ratio(
                rate(f'omni_pipeline_requests_total{{code="{REFUSALS}"}}', BY_PIPELINE, "15m"),
                rate("omni_pipeline_requests_total", BY_PIPELINE, "15m"),
            ),
            fires="> 0.05",
            floor=enough("omni_pipeline_requests_total", BY_PIPELINE, "15m", 20),
            wait="10m",
            severity="warning",
            when="more than 5 % of a pipeline's requests, of at least 20, are refused for lack of capacity, over "
            "15 minutes",
            summary=f"{WHICH} refuses {{{{ $value | humanizePercentage }}}} of its requests.",
            description=f"For 10 minutes {WHICH} has refused more than 5 % of its requests for lack of capacity "
            "(RESOURCE_EXHAUSTED): more come than its stages can serve.",
        ),
        Alert(
            name="OmniPipelineFirstAudioSlow",
            signal=quantile(0.95, "omni_pipeline_first_audio_seconds", "", BY_PIPELINE, "15m"),
            fires="> 10",
            floor=enough("omni_pipeline_first_audio_seconds_count", BY_PIPELINE, "15m", 20),
            wait="15m",
            severity="warning",
            when="5 % of a pipeline's spoken answers begin later than 10 s after the request, over 15 minutes",
            summary=f"Callers of {WHICH} wait {{{{ $value | humanizeDuration }}}} for the first audio.",
            description=f"For 15 minutes one in twenty spoken answers of {WHICH} has begun later than 10 s after its "
            "request: requests queue, or an edge whose mode is Full waits for the whole reply.",
        ),
        Alert(
            name="OmniPipelineSlowerThanPlayback",
            signal=quantile(0.95, "omni_pipeline_real_time_factor_ratio", "", BY_PIPELINE, "15m"),
            fires="> 1",
            floor=enough("omni_pipeline_real_time_factor_ratio_count", BY_PIPELINE, "15m", 20),
            wait="15m",
            severity="warning",
            when="5 % of a pipeline's spoken answers take longer to make than to play, over 15 minutes",
            summary=f"{WHICH} makes audio more slowly than it plays.",
            description=f"For 15 minutes one in twenty spoken answers of {WHICH} has taken "
            "{{ $value | humanize }} times as long as its audio plays, or longer: callers who listen meanwhile hear "
            "pauses.",
        ),
        Alert(
            name="OmniPipelineAudioInterrupted",
            signal=ratio(
                rate('omni_pipeline_spoken_answers_total{continuous="false"}', BY_PIPELINE, "15m"),
                rate("omni_pipeline_spoken_answers_total", BY_PIPELINE, "15m"),
            ),
            fires="> 0.05",
            floor=enough("omni_pipeline_spoken_answers_total", BY_PIPELINE, "15m", 20),
            wait="15m",
            severity="warning",
            when="more than 5 % of a pipeline's spoken answers fall silent before they end, over 15 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the spoken answers of {WHICH} fall silent before they "
            "end.",
            description=f"For 15 minutes more than 5 % of the spoken answers of {WHICH} have come too late to be "
            "played without a break: a stage has more requests than it can serve at the speed of playback.",
        ),
        Alert(
            name="OmniPipelineObjectiveBurnsFast",
            signal=missed(PAGE[0].long),
            fires=" or ".join([burns(PAGE[0]), *(f"{missed(burn.long)} {burns(burn)}" for burn in PAGE[1:])]),
            wait="2m",
            severity="critical",
            only_with="objectives",
            when="an objective of a pipeline is missed so often that the budget of 30 days ends in 2 to 5 days: at "
            "14.4 times the allowed share over an hour and 5 minutes, or at 6 times over 6 hours and 30 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the answers of {WHICH} miss "
            "{{ $labels.objective }}.",
            description=f"Answers of {WHICH} miss spec.objectives.{{{{ $labels.objective }}}} so often that the misses "
            "that 30 days allow will be used up within days. The condition ObjectivesMet names the stage that holds it "
            "back: omnipipe status {{ $labels.pipeline }} -n {{ $labels.namespace }}.",
        ),
        Alert(
            name="OmniPipelineObjectiveBurns",
            signal=missed(TICKET[0].long),
            fires=burns(TICKET[0]),
            wait="1h",
            severity="warning",
            only_with="objectives",
            when="an objective of a pipeline is missed more often than allowed, over 3 days and over 6 hours",
            summary=f"{WHICH} misses {{{{ $labels.objective }}}} more often than allowed.",
            description=f"Over three days {{{{ $value | humanizePercentage }}}} of the answers of {WHICH} have missed "
            "spec.objectives.{{ $labels.objective }}, more than it allows, and this has not ended.",
        ),
    ],
)
