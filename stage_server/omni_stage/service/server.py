"""The ports of a stage: StageService with health and reflection, the health-only port, and metrics."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CollectorRegistry, start_http_server

from omni_proto.channel import server_options
from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError
from omni_stage.service.handlers import stage_handlers
from omni_stage.service.health import StageHealth
from omni_stage.service.interceptors import CallInterceptor
from omni_stage.service.metrics import StageMetrics
from omni_stage.service.servicer import StageServicer
from omni_stage.service.wire import SERVICE_NAME

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

WATCHER_HEADROOM = 256
"""Calls beside Generate that hold a slot: health watchers, reflection, callers that are about to be refused."""

_log = logging.getLogger(__name__)


def main_options(config: StageConfig) -> list[tuple[str, int | str]]:
    """Options of the main port: everyone's, with the stage's own message size and longest request."""
    size = config.limits.max_message_bytes
    options: dict[str, int | str] = dict(server_options(config.timeouts.request + 5))
    options |= {"grpc.max_receive_message_length": size, "grpc.max_send_message_length": size}
    return list(options.items())


def build_main_server(
    config: StageConfig, servicer: StageServicer, health_state: StageHealth, metrics: StageMetrics
) -> grpc.aio.Server:
    """The server of StageService, not started and not bound."""
    server = grpc.aio.server(
        interceptors=(CallInterceptor(config.stage, metrics),),
        options=main_options(config),
        # Hard stop for floods; admission answers long before with a reason and RetryInfo.
        maximum_concurrent_rpcs=4 * config.limits.max_concurrent_requests + WATCHER_HEADROOM,
    )
    name, methods = stage_handlers(servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    health_pb2_grpc.add_HealthServicer_to_server(health_state.main, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def build_health_server(health_state: StageHealth) -> grpc.aio.Server:
    """The health-only server: kubelet's probe has no client certificate, and load must not starve it."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    health_pb2_grpc.add_HealthServicer_to_server(health_state.probes, server)
    return server


def bind(
    server: grpc.aio.Server, host: str, port: int, field: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Bind a port, 0 for any free one; plaintext without credentials. The port.

    Raises ConfigurationError naming field.
    """
    address = f"{host}:{port}"
    try:
        bound: int = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise _cannot_bind(host, port, field, credentials is not None) from error
    if bound == 0:
        raise _cannot_bind(host, port, field, credentials is not None)
    return bound


class MetricsServer:
    """/metrics over HTTP, on a thread of its own, in Prometheus' text format whatever else a scraper would take.

    The client library (0.26) writes OpenMetrics samples without colons in their names: vllm:num_requests_waiting would
    be vllm_num_requests_waiting, which no dashboard of vLLM knows.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._server, self._thread = _start_http(host, port, registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _start_http(host: str, port: int, registry: CollectorRegistry) -> tuple[WSGIServer, threading.Thread]:
    address = host.strip("[]")
    if address == "::" and not socket.has_dualstack_ipv6():
        address = "0.0.0.0"
    try:
        server, thread = start_http_server(port, addr=address, registry=registry)
    except OSError as error:
        raise _cannot_bind(host, port, "listen.metricsPort") from error
    server.set_app(_without_accept(server.get_app()))
    return server, thread


def _without_accept(app: WSGIApplication) -> WSGIApplication:
    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return app({name: value for name, value in environ.items() if name != "HTTP_ACCEPT"}, start_response)

    return answer


def _cannot_bind(host: str, port: int, field: str, has_tls: bool = False) -> ConfigurationError:
    # gRPC does not tell the one from the other.
    why = "is the port taken, or the certificate one that gRPC cannot read?" if has_tls else "is the port taken?"
    return ConfigurationError(f"cannot listen on {host}:{port} ({field}); {why}", field=field)
