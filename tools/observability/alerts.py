"""Defines the alerts. They are few, and each has a page in docs/runbooks that says what to do.

An alert has a signal and a comparison that makes it fire. The signal is a query that has a value even while all is
well, so a test can run it against a healthy pipeline and check that the result is not empty. `only_with` marks the
signals that need a feature to have a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import yaml
from tools.observability.queries import BY_OPERATOR, BY_PIPELINE, BY_STAGE, FAULTS, LEADS, quantile, rate, ratio

RUNBOOKS = "https://omnipipeline.io/docs/runbooks"
"""Base URL of the runbooks. The chart replaces it with metrics.prometheusRule.runbookUrl."""
_CONDITION = "omni_operator_pipeline_condition"


@dataclass(frozen=True)
class Alert:
    """One alerting rule."""

    name: str
    signal: str
    """PromQL that has a value while all is well."""
    fires: str
    """Comparison, e.g. `> 0.05`, that is true of the signal when the alert fires."""
    wait: str
    """How long the comparison must hold before the alert fires."""
    severity: str
    """critical: users are affected now. warning: users will be affected, or work is delayed."""
    when: str
    """Description of when the alert fires, for the table of docs/observability.md."""
    summary: str
    description: str
    only_with: str = ""
    """The feature that makes a stage report these series; empty if every stage reports them."""
    or_absent: str = ""
    """A series whose absence also makes the alert fire: if no target has it, or if the targets that had it in the last
    day no longer do. Empty if there is none."""

    @property
    def expr(self) -> str:
        """Returns the rule's PromQL expression."""
        return f"{self.signal} {self.fires}{f' or {gone(self.or_absent)}' if self.or_absent else ''}"

    @property
    def page(self) -> str:
        """Returns the file name of the alert's runbook."""
        return f"{self.name}.md"


def gone(series: str) -> str:
    """Returns PromQL that has a value for each operator whose series ended within the last day, and one value if no
    target has such a series.

    The chart, which knows its own operator, replaces this text by a selector of that operator (prometheusrule.yaml).
    """
    now, before = (f"max by ({BY_OPERATOR}) ({inner})" for inner in (series, f"max_over_time({series}[1d])"))
    return f"({before} unless {now}) or absent({series})"


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated together."""

    name: str
    alerts: Sequence[Alert]


def _pipelines(condition: str, besides: str = "") -> str:
    """Returns PromQL with 1 or 0 for each pipeline: whether the condition is True.

    besides: pattern of reasons to leave out. `max` merges the equal series of the operator's replicas. The label
    `namespace` of the result is the pipeline's namespace.
    """
    selector = f'condition="{condition}"' + (f', reason!~"{besides}"' if besides else "")
    own = f'label_replace({_CONDITION}{{{selector}}}, "namespace", "$1", "pipeline_namespace", "(.+)")'
    return f"max by ({BY_PIPELINE}) ({own})"


_WHICH = "{{ $labels.namespace }}/{{ $labels.pipeline }}"
_STAGE = f"stage {{{{ $labels.stage }}}} of {_WHICH}"

PIPELINES = Group(
    "omnipipeline-pipelines",
    [
        Alert(
            name="OmniPipelineNotReady",
            # A refused spec is reported by OmniPipelineDegraded.
            signal=_pipelines("Ready", "Suspended|Suspending|ScaledToZero|InvalidSpec|TooManyPipelines|Terminating"),
            fires="== 0",
            wait="15m",
            severity="critical",
            when="no revision of a pipeline has a ready pod in every stage; pipelines that are suspended, or that the "
            "operator refuses, are left out",
            summary=f"Pipeline {_WHICH} is not ready.",
            description=f"No revision of {_WHICH} has had a ready pod in every stage for 15 minutes: requests fail. "
            "Its status names the cause: omnipipe status {{ $labels.pipeline }} -n {{ $labels.namespace }}.",
        ),
        Alert(
            name="OmniPipelineDegraded",
            signal=_pipelines("Degraded"),
            fires="== 1",
            wait="15m",
            severity="warning",
            when="a part of a pipeline failed, though it may still serve",
            summary=f"Pipeline {_WHICH} is degraded.",
            description=f"A part of {_WHICH} has failed for 15 minutes, though it may still serve: a replica is "
            "missing, a rollout is stuck, or an object is refused. Its status names the cause.",
        ),
        Alert(
            name="OmniPipelineErrorRatioHigh",
            signal=ratio(
                rate(f'omni_pipeline_requests_total{{code=~"{FAULTS}"}}', BY_PIPELINE, "5m"),
                rate("omni_pipeline_requests_total", BY_PIPELINE, "5m"),
            ),
            fires="> 0.05",
            wait="5m",
            severity="critical",
            when="more than 5 % of a pipeline's requests end with a code that counts as its fault, over 5 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the requests to {_WHICH} fail.",
            description=f"More than 5 % of the requests to {_WHICH} have ended with a code that counts as the "
            "pipeline's fault, for 5 minutes. Refusals for lack of capacity (RESOURCE_EXHAUSTED) count too.",
        ),
        Alert(
            name="OmniPipelineFirstAudioSlow",
            signal=quantile(0.95, "omni_pipeline_first_audio_seconds", "", BY_PIPELINE, "15m"),
            fires="> 10",
            wait="15m",
            severity="warning",
            when="5 % of a pipeline's spoken answers begin later than 10 s after the request, over 15 minutes",
            summary=f"Callers of {_WHICH} wait {{{{ $value | humanizeDuration }}}} for the first audio.",
            description=f"For 15 minutes one in twenty spoken answers of {_WHICH} has begun later than 10 s after its "
            "request: requests queue, or an edge whose mode is Full waits for the whole reply.",
        ),
        Alert(
            name="OmniPipelineSlowerThanPlayback",
            signal=quantile(0.95, "omni_pipeline_real_time_factor_ratio", "", BY_PIPELINE, "15m"),
            fires="> 1",
            wait="15m",
            severity="warning",
            when="5 % of a pipeline's spoken answers take longer to make than to play, over 15 minutes",
            summary=f"{_WHICH} makes audio more slowly than it plays.",
            description=f"For 15 minutes one in twenty spoken answers of {_WHICH} has taken "
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
            wait="15m",
            severity="warning",
            when="more than 5 % of a pipeline's spoken answers fall silent before they end, over 15 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the spoken answers of {_WHICH} fall silent before they "
            "end.",
            description=f"For 15 minutes more than 5 % of the spoken answers of {_WHICH} have come too late to be "
            "played without a break: a stage has more requests than it can serve at the speed of playback.",
        ),
        Alert(
            name="OmniStageEngineUnhealthy",
            signal=f"min by ({BY_STAGE}, pod) (omni_stage_engine_healthy)",
            fires="== 0",
            wait="20m",
            severity="critical",
            when="a pod's engine is loading, hung or dead",
            summary=f"The engine of {_STAGE} is not healthy.",
            description="The engine in pod {{ $labels.pod }} has been loading, hung or dead for 20 minutes: the pod "
            "accepts no requests.",
        ),
        Alert(
            name="OmniStageRestarting",
            signal=f'max by ({BY_STAGE}, pod) (changes(process_start_time_seconds{{stage!="", pipeline!=""}}[1h]))',
            fires="> 2",
            wait="0m",
            severity="warning",
            when="a stage server restarted more than twice within an hour",
            summary=f"{_STAGE.capitalize()} restarts repeatedly.",
            description="The stage server in pod {{ $labels.pod }} has restarted {{ $value }} times in an hour: "
            "its engine dies, hangs, or runs out of memory. Each restart fails the requests in the pod.",
        ),
        Alert(
            name="OmniStageQueueGrowing",
            # The shortest queue of each pod, so that the brief queues of many pods do not add up.
            signal=f"sum by ({BY_STAGE}) "
            "(min_over_time(vllm:num_requests_waiting[5m]) or min_over_time(omni_stage_waiting_requests[5m]))",
            fires="> 10",
            wait="5m",
            severity="warning",
            when="more than 10 requests have waited in the queue of a stage's engines throughout the last 5 minutes",
            summary=f"Requests queue up at {_STAGE}.",
            description="For 10 minutes more than 10 requests have waited, and for the last 5 minutes at least "
            "{{ $value | humanize }}: the stage receives more than it can serve. Clients will soon see missed "
            "deadlines and refusals.",
        ),
        Alert(
            name="OmniStageMemoryBudgetNearlyFull",
            signal=f"max by ({BY_STAGE}, pod) (omni_stage_inflight_bytes / omni_stage_inflight_limit_bytes)",
            fires="> 0.9",
            wait="10m",
            severity="warning",
            when="a pod's requests have reserved more than 90 % of its byte budget",
            summary=f"{_STAGE.capitalize()} has almost no byte budget left.",
            description="Requests have reserved {{ $value | humanizePercentage }} of what pod {{ $labels.pod }} may "
            "hold for tensors and media, for 10 minutes. From 75 % on it refuses media and requests with a priority "
            "above 0, and at 100 % every request, with BYTE_BUDGET_EXCEEDED.",
        ),
        Alert(
            name="OmniStageCompiledCheckFailed",
            signal=f"max by ({BY_STAGE}, pod) (omni_stage_compiled_check_failed)",
            fires="== 1",
            wait="5m",
            severity="warning",
            when="a stage runs without compilation because compiled code or CUDA graphs gave wrong results at start-up",
            summary=f"{_STAGE.capitalize()} runs without compilation: its compiled code gave wrong results.",
            description="At start-up the compiled code or the CUDA graphs in pod {{ $labels.pod }} gave other "
            "results than the model's own code. The pod serves without them: its answers are correct, but slower.",
        ),
        Alert(
            name="OmniStageCompilesWhileServing",
            signal=f"max by ({BY_STAGE}, pod) (increase(omni_stage_kernels_compiled_total[15m]))",
            fires="> 0",
            wait="1m",
            severity="warning",
            when="a stage that was ready had to compile a kernel in the last 15 minutes",
            summary=f"{_STAGE.capitalize()} compiles kernels while it serves.",
            description="Pod {{ $labels.pod }} was ready, and since then a request needed a kernel that its start had "
            "not compiled. All requests of the pod waited meanwhile, about a second for each kernel.",
        ),
        Alert(
            name="OmniStageCertificateExpiring",
            signal=f"min by ({BY_STAGE}, pod) (omni_stage_tls_certificate_expiry_timestamp_seconds) - time()",
            fires="< 7 * 24 * 3600",
            wait="1h",
            severity="warning",
            only_with="TLS",
            when="a certificate that a stage serves is valid for less than a week",
            summary=f"The certificate of {_STAGE} expires in {{{{ $value | humanizeDuration }}}}.",
            description="Pod {{ $labels.pod }} serves a certificate that expires within a week: it was not renewed, or "
            "the new one cannot be used. After that, clients that check certificates cannot connect.",
        ),
    ],
)


OPERATOR = Group(
    "omnipipeline-operator",
    [
        Alert(
            name="OmniOperatorNotReconciling",
            signal=f"sum by ({BY_OPERATOR}) (omni_operator_leader)",
            fires="< 1",
            or_absent="omni_operator_leader",
            wait="5m",
            severity="critical",
            when="no pod of an operator holds its lease, or none is scraped",
            summary="No omnipipeline operator is active{{ with $labels.job }} (job {{ . }} in {{ $labels.namespace }})"
            "{{ end }}.",
            description="For 5 minutes no pod of the operator has held its lease, or none is scraped: its pipelines "
            "keep serving, but edits, healing and rollouts wait.",
        ),
        Alert(
            name="OmniOperatorStuck",
            # Only the leader counts: on standbys all work waits all the time.
            signal=f"max by ({BY_OPERATOR}) (omni_operator_longest_due_seconds {LEADS})",
            fires="> 150",
            wait="5m",
            severity="warning",
            when="a pipeline has waited for a due reconcile, or its reconcile has been running, for more than 150 s",
            summary="The omnipipeline operator falls behind.",
            description="A pipeline has been due for a reconcile, or its reconcile has been running, for "
            "{{ $value | humanizeDuration }}: the operator hangs, or is overloaded.",
        ),
        Alert(
            name="OmniOperatorWatchSilent",
            # A healthy watch is renewed every minute or so, even if nothing changes.
            signal=f"max by ({BY_OPERATOR}, watch) (omni_operator_watch_age_seconds)",
            fires="> 300",
            wait="10m",
            severity="warning",
            when="a watch of the operator has received nothing for more than 5 minutes, because the API server refuses "
            "it or does not answer",
            summary="The omnipipeline operator does not see {{ $labels.watch }}.",
            description="The operator's watch {{ $labels.watch }} has received nothing for "
            "{{ $value | humanizeDuration }}: the API server refuses it, or does not answer. Pipelines that need it "
            "keep serving, but edits, healing and rollouts wait.",
        ),
        Alert(
            name="OmniOperatorReconcileErrors",
            signal=ratio(
                rate('omni_operator_reconcile_total{result="error"}', BY_OPERATOR, "15m"),
                rate("omni_operator_reconcile_total", BY_OPERATOR, "15m"),
            ),
            fires="> 0.2",
            wait="15m",
            severity="warning",
            when="more than a fifth of the reconciles fail, over 15 minutes; those that a quota or an admission policy "
            "denies do not count",
            summary="{{ $value | humanizePercentage }} of the operator's reconciles fail.",
            description="For 15 minutes more than a fifth of the operator's reconciles have ended with an error: the "
            "API server does not answer or refuses the operator's writes, or the operator has a bug.",
        ),
    ],
)

GROUPS = (PIPELINES, OPERATOR)


def list_alerts() -> list[Alert]:
    """Returns all alerts, in the order of the file."""
    return [alert for group in GROUPS for alert in group.alerts]


def render_rules(groups: Sequence[Group] = GROUPS, runbooks: str = RUNBOOKS) -> str:
    """Returns the text of a Prometheus rules file."""
    document = {
        "groups": [{"name": group.name, "rules": [_rule(a, runbooks) for a in group.alerts]} for group in groups]
    }
    header = "# Generated by `make dashboards` from tools/observability/alerts.py; edit that.\n"
    return header + yaml.safe_dump(document, sort_keys=False, width=10_000, allow_unicode=True)


def _rule(alert: Alert, runbooks: str) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbooks}/{alert.page}",
        },
    }
