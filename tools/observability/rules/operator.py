"""The alerts on the operator."""

from __future__ import annotations

from tools.observability.queries import BY_OPERATOR, LEADS, enough, rate, ratio
from tools.observability.rules.rule import Alert, Group

OPERATOR = Group(
    "omnipipeline-operator",
    [
        Alert(
            name="OmniOperatorNotReconciling",
            signal=f"sum by ({BY_OPERATOR}) (omni_operator_leader)",
            fires="< 1",
            or_gone="omni_operator_leader",
            wait="5m",
            severity="critical",
            when="no pod of an operator holds its lease, or none is scraped any more",
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
            floor=enough("omni_operator_reconcile_total", BY_OPERATOR, "15m", 5),
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
