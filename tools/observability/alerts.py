"""All alerts: those on stages, the operator and the gateway, beside those on pipelines. They are few, and each has a
page in docs/runbooks that says what to do."""

from __future__ import annotations

from tools.observability.queries import (
    BY_GATEWAY,
    BY_OPERATOR,
    BY_PIPELINE,
    BY_STAGE,
    LEADS,
    PROBES,
    enough,
    quantile,
    rate,
    ratio,
)
from tools.observability.rules.pipelines import PIPELINES, WHICH, condition_of
from tools.observability.rules.rule import Alert, Group

_STAGE = f"stage {{{{ $labels.stage }}}} of {WHICH}"

STAGES = Group(
    "omnipipeline-stages",
    [
        Alert(
            name="OmniStageEngineUnhealthy",
            signal=f"min by ({BY_STAGE}, pod) (omni_stage_engine_healthy)",
            # The age of the process, beyond what the stage may take to start.
            fires=f"== 0 and min by ({BY_STAGE}, pod) "
            "(time() - process_start_time_seconds - omni_stage_start_limit_seconds) > 0",
            wait="2m",
            severity="critical",
            when="a pod's engine is not healthy, and the stage's own limit of a start is over: it hangs or is dead, or "
            "did not load in time",
            summary=f"The engine of {_STAGE} is not healthy.",
            description="The engine in pod {{ $labels.pod }} hangs, is dead, or did not load within the time that the "
            "stage has for it (startupSeconds): the pod accepts no requests.",
        ),
        Alert(
            name="OmniStageNotScraped",
            signal=f'max by ({BY_STAGE}) (up{{pipeline!="", stage!=""}})',
            # A pod that is still starting has no metrics yet; a stage of a pipeline that is Ready has a pod that does.
            fires=f"== 0 and on ({BY_PIPELINE}) {condition_of('Ready')} == 1",
            wait="15m",
            severity="warning",
            only_with="stages beside their operator",
            when="Prometheus reaches no pod of a stage, though the pipeline is Ready",
            summary=f"Prometheus does not reach the pods of {_STAGE}.",
            description=f"{WHICH} is Ready, but for 15 minutes Prometheus has read the metrics of none of the stage's "
            "pods: alerts and dashboards are blind to it. The pipeline itself serves.",
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


_WHICH = "the gateway {{ $labels.job }} in {{ $labels.namespace }}"
_REQUESTS = f'omni_gateway_requests_total{{route!~"{PROBES}"}}'
# Two counters: statuses of 500 or more, and errors in a stream after status 200, which have no label `status`.
_FAILED = (
    f'{{__name__=~"omni_gateway_requests_total|omni_gateway_broken_answers_total", route!~"{PROBES}", status=~"5..|"}}'
)
_REFUSED = f'omni_gateway_requests_total{{route!~"{PROBES}", status="429"}}'

GATEWAY = Group(
    "omnipipeline-gateway",
    [
        Alert(
            name="OmniGatewayDown",
            signal=f"count by ({BY_GATEWAY}) (omni_gateway_inflight_requests)",
            fires="< 1",
            or_gone="omni_gateway_inflight_requests",
            wait="5m",
            severity="critical",
            only_with="gateway",
            when="no pod of a gateway is scraped any more",
            summary="No pod of the omnipipeline gateway{{ with $labels.job }} {{ . }}{{ end }} answers.",
            description="For 5 minutes Prometheus has reached no pod of the gateway: clients of OpenAI's API get no "
            "answer. Clients of the pipelines' own gRPC addresses are not affected.",
        ),
        Alert(
            name="OmniGatewayErrorRatioHigh",
            signal=ratio(rate(_FAILED, BY_GATEWAY, "5m"), rate(_REQUESTS, BY_GATEWAY, "5m")),
            fires="> 0.05",
            floor=enough(_REQUESTS, BY_GATEWAY, "5m", 20),
            wait="5m",
            severity="critical",
            only_with="failed requests",
            when="more than 5 % of a gateway's requests, of at least 20, end with a status of 500 or more, or with an "
            "error after status 200, over 5 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the requests to {_WHICH} fail.",
            description=f"More than 5 % of the requests to {_WHICH} have failed for 5 minutes: with a status of 500 or "
            "more, or with an error in a stream that had begun.",
        ),
        Alert(
            name="OmniGatewayRefusesRequests",
            signal=ratio(rate(_REFUSED, BY_GATEWAY, "15m"), rate(_REQUESTS, BY_GATEWAY, "15m")),
            fires="> 0.2",
            floor=enough(_REQUESTS, BY_GATEWAY, "15m", 20),
            wait="15m",
            severity="warning",
            only_with="refused requests",
            when="more than a fifth of a gateway's requests, of at least 20, are refused with status 429, over "
            "15 minutes",
            summary=f"{{{{ $value | humanizePercentage }}}} of the requests to {_WHICH} get status 429.",
            description=f"For 15 minutes more than a fifth of the requests to {_WHICH} have been refused with status "
            "429: a key's limits are too low for its clients, or a pipeline has too few pods.",
        ),
        Alert(
            name="OmniGatewayFirstAudioSlow",
            signal=quantile(0.95, "omni_gateway_first_output_seconds", 'kind="audio"', BY_GATEWAY, "15m"),
            fires="> 10",
            floor=enough('omni_gateway_first_output_seconds_count{kind="audio"}', BY_GATEWAY, "15m", 20),
            wait="15m",
            severity="warning",
            only_with="audio",
            when="5 % of a gateway's spoken answers, of at least 20, begin later than 10 s after the request, over 15 "
            "minutes",
            summary=f"Clients of {_WHICH} wait {{{{ $value | humanizeDuration }}}} for the first audio.",
            description=f"For 15 minutes one in twenty spoken answers of {_WHICH} has begun later than 10 s after its "
            "request. If no OmniPipelineFirstAudioSlow fires, the time is lost in the gateway.",
        ),
        Alert(
            name="OmniGatewayCertificateExpiring",
            signal=f"min by ({BY_GATEWAY}, pod) (omni_gateway_tls_certificate_expiry_timestamp_seconds) - time()",
            fires="< 7 * 24 * 3600",
            wait="1h",
            severity="warning",
            only_with="gateway with TLS",
            when="a certificate that a gateway serves is valid for less than a week",
            summary=f"The certificate of {_WHICH} expires in {{{{ $value | humanizeDuration }}}}.",
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


GROUPS = (PIPELINES, STAGES, OPERATOR, GATEWAY)


def list_alerts() -> list[Alert]:
    """Returns all alerts, in the order of the file."""
    return [alert for group in GROUPS for alert in group.alerts]
