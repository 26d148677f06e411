"""Which protocol spans are sent with: OpenTelemetry's variables are obeyed or refused, never ignored."""

from __future__ import annotations

import pytest

from omni_proto.runtime.otlp import GRPC, HTTP, TraceExportError, read_protocol

TRACES, ALL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.mark.parametrize(
    ("environment", "protocol", "variable"),
    [
        ({}, GRPC, ""),
        ({ALL: ""}, GRPC, ""),
        ({ALL: "grpc"}, GRPC, ALL),
        ({ALL: "HTTP/protobuf"}, HTTP, ALL),
        ({ALL: "grpc", TRACES: "http/protobuf"}, HTTP, TRACES),
        ({ALL: "http/json", TRACES: "grpc"}, GRPC, TRACES),
    ],
)
def test_the_variable_for_traces_goes_before_the_one_for_all(
    environment: dict[str, str], protocol: str, variable: str
) -> None:
    assert read_protocol(environment) == (protocol, variable)


@pytest.mark.parametrize("variable", [TRACES, ALL])
@pytest.mark.parametrize("value", ["http/json", "http"])
def test_another_protocol_is_refused_by_name(variable: str, value: str) -> None:
    with pytest.raises(TraceExportError) as refused:
        read_protocol({variable: value})
    assert str(refused.value) == f"{variable} is {value!r}; use grpc (the default) or http/protobuf"
    assert refused.value.variable == variable
