"""A taken port is refused before the engine loads, with its field and the remedy."""

from __future__ import annotations

import socket

import pytest

from omni_proto.stage_config import Listen
from omni_stage.errors import ConfigurationError
from omni_stage.process.startup import check_ports
from support.tables import each_row


@each_row("field", ["grpc_port", "health_port", "metrics_port"])
@each_row("host", ["127.0.0.1", "[::]", "0.0.0.0"])
@each_row("other", ["127.0.0.1", "0.0.0.0"])
def test_each_declared_port(field: str, host: str, other: str) -> None:
    free = {"grpc_port": 0, "health_port": 0, "metrics_port": 0}
    with socket.create_server((other, 0)) as program:
        port = program.getsockname()[1]
        with pytest.raises(ConfigurationError) as caught:
            check_ports(Listen(host=host, **{**free, field: port}))
    name = {"grpc_port": "grpcPort", "health_port": "healthPort", "metrics_port": "metricsPort"}[field]
    assert f"listen.{name}: " in str(caught.value)
    assert f"port {port} is taken by another program; end that program" in str(caught.value)
    check_ports(Listen(host=host, **{**free, field: port}))


def test_two_fields_with_one_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as program:
        port = program.getsockname()[1]
    with pytest.raises(ConfigurationError, match=f"grpcPort and metricsPort are both {port}"):
        check_ports(Listen(host="127.0.0.1", grpc_port=port, health_port=0, metrics_port=port))


def test_an_address_that_this_machine_does_not_have() -> None:
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1:0"):
        check_ports(Listen(host="192.0.2.1", grpc_port=0, health_port=0, metrics_port=0))
