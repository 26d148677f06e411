"""The alerts on the pods of stages."""

from __future__ import annotations

from tools.observability.queries import BY_PIPELINE, BY_STAGE
from tools.observability.rules.pipelines import WHICH, condition_of
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
