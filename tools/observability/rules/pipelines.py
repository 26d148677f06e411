"""The alerts on pipelines: what their clients get, and whether they serve at all."""

from __future__ import annotations

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
from tools.observability.rules.burn_rates import PAGE, TICKET, burns, missed
from tools.observability.rules.rule import Alert, Group

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
