"""Checks that a stage's ports are free, before anything heavy is imported or loaded."""

from __future__ import annotations

from omni_proto.runtime.connections import explain_taken, open_listener
from omni_proto.stage_config import Listen
from omni_stage.errors import ConfigurationError


def check_ports(listen: Listen) -> None:
    """Raises ConfigurationError if a port is taken. Called before the engine loads, which takes minutes."""
    ports = {"grpcPort": listen.grpc_port, "healthPort": listen.health_port, "metricsPort": listen.metrics_port}
    for name, port in ports.items():
        field = f"listen.{name}"
        same = [other for other, value in ports.items() if value == port and port]
        if len(same) > 1:
            raise ConfigurationError(f"listen: {' and '.join(same)} are both {port}; give each its own", field=field)
        try:
            open_listener(listen.host, port).close()
        except OSError as error:
            raise ConfigurationError(f"{field}: {explain_taken(error, listen.host, port)}", field=field) from error
