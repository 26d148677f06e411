"""The dashboard of the HTTP gateway: what its clients see, and who uses what."""

from __future__ import annotations

from tools.observability.grafana import Dashboard, Panel, Query, Row, Variable
from tools.observability.queries import PROBES, quantile, rate, ratio

_GATEWAY = 'namespace=~"$namespace", job=~"$job"'
_CALLS = f'{_GATEWAY}, route!~"{PROBES}"'
_USERS = f'{_GATEWAY}, model=~"$model"'

_CLIENTS = Row(
    "What clients see",
    [
        Panel(
            "Requests",
            [Query(rate(f"omni_gateway_requests_total{{{_CALLS}}}", "route, status"), "{{route}} {{status}}")],
            "Requests that ended per second, by route and status; 499: the client left.",
            unit="reqps",
            stacked=True,
            alert="OmniGatewayErrorRatioHigh",
        ),
        Panel(
            "Refused requests",
            [Query(rate(f"omni_gateway_refused_total{{{_GATEWAY}}}", "code"), "{{code}}")],
            "Requests per second that got an error, by its code; docs/errors.md explains each.",
            unit="reqps",
            stacked=True,
            alert="OmniGatewayRefusesRequests",
            only_with="refused requests",
        ),
        Panel(
            "Share with status 429",
            [
                Query(
                    ratio(
                        rate(f'omni_gateway_requests_total{{{_CALLS}, status="429"}}', "namespace, job"),
                        rate(f"omni_gateway_requests_total{{{_CALLS}}}", "namespace, job"),
                    ),
                    "{{job}}",
                )
            ],
            "Share of requests beyond the limits of a key, or beyond what a pipeline can serve.",
            unit="percentunit",
            thresholds=[(0.05, "orange"), (0.2, "red")],
            alert="OmniGatewayRefusesRequests",
            only_with="refused requests",
        ),
        Panel(
            "First output, p95",
            [Query(quantile(0.95, "omni_gateway_first_output_seconds", _GATEWAY, "route, kind"), "{{route}} {{kind}}")],
            "Time from a request to the first text or audio of its answer.",
            unit="s",
            alert="OmniGatewayFirstAudioSlow",
        ),
        Panel(
            "Requests in progress",
            [Query(f"sum by (pod) (omni_gateway_inflight_requests{{{_GATEWAY}}})", "{{pod}}")],
            "Requests that each pod is answering.",
        ),
        Panel(
            "Open sessions",
            [Query(f"sum by (pod) (omni_gateway_realtime_sessions{{{_GATEWAY}}})", "{{pod}}")],
            "Sessions of /v1/realtime that each pod holds.",
        ),
    ],
)

_USE = Row(
    "Who uses what",
    [
        Panel(
            "Requests by key",
            [Query(rate(f"omni_gateway_model_requests_total{{{_USERS}}}", "model, key"), "{{model}} {{key}}")],
            "Requests per second, by model and name of the API key; without keys the name is empty.",
            unit="reqps",
            stacked=True,
        ),
        Panel(
            "Tokens in the range",
            [
                Query(
                    f"sum by (model, key, kind) (increase(omni_gateway_tokens_total{{{_USERS}}}[$__range]))",
                    "{{model}} {{key}} {{kind}}",
                )
            ],
            "Tokens by model, key and kind in the range that the dashboard shows: what to bill.",
            kind="table",
        ),
        Panel(
            "Audio in the range",
            [
                Query(
                    f"sum by (model, key) (increase(omni_gateway_audio_seconds_total{{{_USERS}}}[$__range]))",
                    "{{model}} {{key}}",
                )
            ],
            "Seconds of audio by model and key in the range that the dashboard shows: what to bill.",
            unit="s",
            kind="table",
        ),
    ],
)

GATEWAY_DASHBOARD = Dashboard(
    uid="omnipipeline-gateway",
    title="omnipipeline / Gateway",
    description="The HTTP gateway: what its clients see, and who uses what.",
    rows=[_CLIENTS, _USE],
    variables=[
        Variable("namespace", "label_values(omni_gateway_inflight_requests, namespace)"),
        Variable("job", 'label_values(omni_gateway_inflight_requests{namespace=~"$namespace"}, job)'),
        Variable("model", f"label_values(omni_gateway_model_requests_total{{{_GATEWAY}}}, model)"),
    ],
)
