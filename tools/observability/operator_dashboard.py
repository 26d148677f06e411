"""The dashboard of the operator: the pipelines as the operator sees them, its work, and its calls to the API server."""

from __future__ import annotations

from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.queries import BY_OPERATOR, LEADS, QUANTILES, quantile, rate

_OPERATOR = 'namespace=~"$namespace"'
_INFO = f"omni_operator_info{{{_OPERATOR}}}"
_PIPELINES = 'namespace=~"$namespace", pipeline_namespace=~"$pipeline_namespace", pipeline=~"$pipeline"'

_READINESS = Row(
    "Pipelines",
    [
        Panel(
            "Pipelines by readiness",
            # The standbys of an operator report the same pipelines, so a sum over pods would count them twice.
            [
                Query(
                    f"sum by (ready) (max by (ready, {BY_OPERATOR}) (omni_operator_pipelines{{{_OPERATOR}}}))",
                    "Ready={{ready}}",
                )
            ],
            "Pipelines by the status of their Ready condition.",
            stacked=True,
        ),
        Panel(
            "Conditions",
            [
                Query(
                    "max by (pipeline_namespace, pipeline, condition, reason)"
                    f" (omni_operator_pipeline_condition{{{_PIPELINES}}})"
                )
            ],
            "Each pipeline's conditions, 1 if True; docs/status.md explains each reason.",
            kind="table",
            width=16,
        ),
    ],
)

_WORK = Row(
    "Work",
    [
        Panel(
            "Reconciles",
            [Query(rate(f"omni_operator_reconcile_total{{{_OPERATOR}}}", "result"), "{{result}}")],
            "Reconciles per second, by result.",
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Time of a reconcile",
            [
                Query(
                    quantile(share, "omni_operator_reconcile_duration_seconds", _OPERATOR, "namespace"),
                    f"p{share * 100:g}",
                )
                for share in QUANTILES
            ],
            "Duration of one reconcile of one pipeline, writes included.",
            unit="s",
        ),
        Panel(
            "Queue",
            [Query(f"sum by (pod) (omni_operator_queued_pipelines{{{_OPERATOR}}})", "{{pod}}")],
            "Pipelines that wait for a reconcile, planned repetitions included.",
        ),
        Panel(
            "Longest due",
            [
                Query(
                    f"omni_operator_longest_due_seconds{{{_OPERATOR}}} {LEADS}",
                    "{{pod}}",
                )
            ],
            "Longest time for which a pipeline has been due for a reconcile, or its reconcile has been running; 0 for "
            "standbys.",
            unit="s",
            thresholds=[(60, "orange"), (180, "red")],
        ),
        Panel(
            "Leader",
            [Query(f"max by (pod) (omni_operator_leader{{{_OPERATOR}}})", "{{pod}}")],
            "1 for the pod that may write.",
        ),
        Panel(
            "Writes",
            [
                Query(rate(f"omni_operator_status_writes_total{{{_OPERATOR}}}"), "statuses"),
                Query(rate(f"omni_operator_noop_applies_total{{{_OPERATOR}}}"), "applies that changed nothing"),
            ],
            "Statuses written per second, and applies per second that changed nothing (should be 0).",
            unit="ops",
        ),
    ],
)

_API = Row(
    "API server",
    [
        Panel(
            "Calls",
            [Query(rate(f"omni_operator_api_calls_total{{{_OPERATOR}}}", "verb, code"), "{{verb}} {{code}}")],
            "Calls per second, by RBAC verb and HTTP status.",
            unit="ops",
            stacked=True,
        ),
        Panel(
            "Time of a call",
            [
                Query(
                    quantile(0.95, "omni_operator_api_call_duration_seconds", _OPERATOR, "verb"),
                    "{{verb}} p95",
                )
            ],
            "Time until the API server answered a call, by RBAC verb. For a watch, the time until it started.",
            unit="s",
        ),
        Panel(
            "Watch age",
            [Query(f"max by (watch) (omni_operator_watch_age_seconds{{{_OPERATOR}}})", "{{watch}}")],
            "Time since each watch last received anything. Each watch is renewed every minute. At 180 s Kubernetes "
            "restarts the operator, unless the API server refuses the watch (403).",
            unit="s",
            thresholds=[(120, "orange"), (180, "red")],
        ),
        Panel(
            "Memory",
            [
                Query(
                    f"process_resident_memory_bytes{{{_OPERATOR}}} * on (job, instance) group_left () {_INFO}",
                    "{{pod}} memory",
                ),
            ],
            "Resident memory of the operator's pods.",
            unit="bytes",
        ),
    ],
)

OPERATOR_DASHBOARD = Dashboard(
    uid="omnipipeline-operator",
    title="omnipipeline / Operator",
    description="The omnipipeline operator and the pipelines that it manages.",
    rows=[_READINESS, _WORK, _API],
    variables=[
        Variable("namespace", "label_values(omni_operator_info, namespace)"),
        Variable("pipeline_namespace", "label_values(omni_operator_pipeline_condition, pipeline_namespace)"),
        Variable(
            "pipeline",
            'label_values(omni_operator_pipeline_condition{pipeline_namespace=~"$pipeline_namespace"}, pipeline)',
        ),
    ],
)
