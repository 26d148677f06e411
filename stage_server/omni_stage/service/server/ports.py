"""The ports of a stage: StageService with health and reflection, the health-only port, and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
from aiohttp import web
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics

from omni_proto.rpc.options import server_options
from omni_proto.runtime.connections import BACKLOG, BoundedConnections, explain_taken, open_listener
from omni_proto.stage.v1 import stage_service_pb2
from omni_proto.stage_config import StageConfig
from omni_stage.errors import ConfigurationError, OmniStageError
from omni_stage.service.guard.refusals import HELD_PER_CLIENT, HeldRefusals
from omni_stage.service.guard.side_calls import (
    HEALTH_IN_ALL,
    HEALTH_PER_PEER,
    MAIN_IN_ALL,
    MAIN_PER_PEER,
    SideCallInterceptor,
)
from omni_stage.service.load import LoadMeter
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.interceptor import CallInterceptor
from omni_stage.service.request.reading import deserialize_request
from omni_stage.service.request.responses import serialize_response
from omni_stage.service.request.servicer import StageServicer
from omni_stage.service.server.health import StageHealth
from omni_stage.service.wire import GENERATE, GET_STAGE, SERVICE_NAME

STOP_S = 1.0


class MetricsServer:
    """Answers scrapes on the running event loop. `start`, then `close`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._http = web.Server(self._answer, access_log=None)
        self._server: asyncio.Server | None = None
        # One thread, so that scrapes take at most one core from requests. The bound on connections also bounds the
        # thread's queue.
        self._collector = ThreadPoolExecutor(1, thread_name_prefix="metrics")
        self.port = 0
        """The port, once started."""

    async def start(self, host: str, port: int) -> int:
        """Bind and start; port 0 picks any free port. Returns the port. Raises ConfigurationError."""
        try:
            listener = open_listener(host, port)
        except OSError as error:
            explained = f"listen.metricsPort: {explain_taken(error, host, port)}"
            raise ConfigurationError(explained, field="listen.metricsPort") from error
        bounded = BoundedConnections(self._http)
        self._server = await asyncio.get_running_loop().create_server(bounded, sock=listener, backlog=BACKLOG)
        self.port = int(listener.getsockname()[1])
        return self.port

    async def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.close()
        await self._http.shutdown(STOP_S)
        self._collector.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, request: web.BaseRequest) -> web.Response:
        if request.path not in ("/metrics", "/"):
            response = web.Response(status=404, text="only /metrics is here\n")
        elif request.method not in ("GET", "HEAD"):
            response = web.Response(status=405, text="only GET is answered\n", headers={"Allow": "GET, HEAD"})
        else:
            loop = asyncio.get_running_loop()
            encode, kind = _choose_format(request.headers.get("Accept", ""))
            body = await loop.run_in_executor(self._collector, encode, self._registry)
            response = web.Response(body=body, headers={"Content-Type": kind})
            response.enable_compression()
        response.force_close()
        return response


def _choose_format(accept: str) -> tuple[Callable[[CollectorRegistry], bytes], str]:
    """Returns the encoder of the format that a scrape asks for, and the format's content type.

    By default, prometheus_client 0.26 replaces the colons in names in the OpenMetrics format, although the format
    allows colons. vllm:num_requests_waiting would become vllm_num_requests_waiting, which vLLM's dashboards do not
    know. The option "allow-utf-8" keeps the colons.
    """
    if "application/openmetrics-text" not in accept:
        return generate_latest, CONTENT_TYPE_LATEST
    return partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8), openmetrics.CONTENT_TYPE_LATEST


MAX_CONNECTIONS = 16_384
"""Maximum number of connections of a port; gRPC refuses further ones. An idle connection costs about 15 KiB."""
HANDSHAKE_TIMEOUT_S = 10
"""Time limit for the TLS handshake and the first HTTP/2 settings. A connection that exceeds it is closed."""
IDLE_S = 60
"""Seconds after which a connection without calls is closed."""
HEALTH_MESSAGE_BYTES = 64 * 1024

_log = logging.getLogger(__name__)


_CONNECTIONS = {
    "grpc.max_allowed_incoming_connections": MAX_CONNECTIONS,
    "grpc.server_handshake_timeout_ms": HANDSHAKE_TIMEOUT_S * 1000,
    "grpc.max_connection_idle_ms": IDLE_S * 1000,
}


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports that a stage server listens on."""

    grpc: int
    health: int
    metrics: int

    def write(self, path: Path) -> None:
        """Write the ports as JSON, atomically: a reader never sees half a file. Raises OmniStageError."""
        try:
            with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=path.name, delete=False) as file:
                json.dump({"grpc": self.grpc, "health": self.health, "metrics": self.metrics}, file)
            Path(file.name).replace(path)
        except OSError as error:
            raise OmniStageError(
                f"cannot write {path}: {error.strerror}; choose another --address-file, or free space"
            ) from error


def main_options(config: StageConfig, start_slots: int) -> list[tuple[str, int | str]]:
    """Returns the main port's options: the shared ones, with this stage's message size, request timeout and bounds."""
    size = config.limits.max_message_bytes
    options: dict[str, int | str] = dict(server_options(config.timeouts.request + 5))
    # Permit more streams than the stage serves. A call beyond the stage's limits is then refused with a reason, and
    # does not wait in the client.
    streams = 2 * (config.limits.max_concurrent_requests + start_slots + MAIN_PER_PEER) + HELD_PER_CLIENT
    options |= {
        "grpc.max_receive_message_length": size,
        "grpc.max_send_message_length": size,
        "grpc.max_concurrent_streams": streams,
    }
    return list((options | _CONNECTIONS).items())


def health_options() -> list[tuple[str, int | str]]:
    """Returns the options of the health-only port: it takes only small messages, and closes connections after a
    minute."""
    options: dict[str, int | str] = {
        "grpc.so_reuseport": 0,
        "grpc.max_receive_message_length": HEALTH_MESSAGE_BYTES,
        "grpc.max_concurrent_streams": 4 * HEALTH_PER_PEER,
        "grpc.max_connection_age_ms": 60_000,
        "grpc.max_connection_age_grace_ms": 5_000,
    }
    return list((options | _CONNECTIONS).items())


def build_main_server(
    config: StageConfig,
    servicer: StageServicer,
    health_state: StageHealth,
    metrics: StageMetrics,
    start_slots: int,
    held: HeldRefusals | None,
    load: LoadMeter,
) -> grpc.aio.Server:
    """Returns the server of StageService, not started and not bound.

    Each kind of call has its own bound. If all kinds shared one bound, health watches could use it up, and requests
    would be refused.
    """
    server = grpc.aio.server(
        interceptors=(
            SideCallInterceptor(MAIN_IN_ALL, MAIN_PER_PEER),
            CallInterceptor(config.stage, metrics, held, load),
        ),
        options=main_options(config, start_slots),
    )
    name, methods = stage_handlers(servicer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    health_pb2_grpc.add_HealthServicer_to_server(health_state.main, server)
    reflection.enable_server_reflection((SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server


def build_health_server(health_state: StageHealth) -> grpc.aio.Server:
    """Returns the health-only server. It has a port of its own, because kubelet's probe has no client certificate, and
    requests must not delay the probe."""
    server = grpc.aio.server(
        interceptors=(SideCallInterceptor(HEALTH_IN_ALL, HEALTH_PER_PEER),), options=health_options()
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_state.probes, server)
    return server


def bind(
    server: grpc.aio.Server, host: str, port: int, field: str, credentials: grpc.ServerCredentials | None = None
) -> int:
    """Bind a port; 0 picks any free port. Without credentials, the port serves plaintext. Returns the port.

    Raises ConfigurationError that names `field`.
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


def _cannot_bind(host: str, port: int, field: str, has_tls: bool = False) -> ConfigurationError:
    # gRPC raises the same error for a taken port and for a certificate that it cannot read.
    why = "is the port taken, or the certificate one that gRPC cannot read?" if has_tls else "is the port taken?"
    return ConfigurationError(f"cannot listen on {host}:{port} ({field}); {why}", field=field)


def stage_handlers(servicer: StageServicer) -> tuple[str, dict[str, grpc.RpcMethodHandler]]:
    """Returns the full name of the service, and a handler for each of its methods."""
    methods = {
        GENERATE: grpc.stream_stream_rpc_method_handler(
            servicer.generate,
            request_deserializer=deserialize_request,
            response_serializer=serialize_response,
        ),
        GET_STAGE: grpc.unary_unary_rpc_method_handler(
            servicer.get_stage,
            request_deserializer=stage_service_pb2.GetStageRequest.FromString,
            response_serializer=stage_service_pb2.GetStageResponse.SerializeToString,
        ),
    }
    return SERVICE_NAME, methods
