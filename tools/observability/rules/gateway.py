"""The alerts on the HTTP gateway."""

from __future__ import annotations

from tools.observability.queries import BY_GATEWAY, PROBES, enough, quantile, rate, ratio
from tools.observability.rules.rule import Alert, Group

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
