"""Answers gRPC callers of a pipeline that sleeps, and wakes it.

While a pipeline has no pods, the operator lets its Service lead here. Every call ends with UNAVAILABLE and a RetryInfo;
the caller repeats it, and by then the Service leads to the pods. Nothing is held: a call costs a few hundred bytes
until it is answered.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from omni_gateway.entries.holds import WAKE_S
from omni_gateway.entries.pipelines import Pipelines, ServedPipeline
from omni_gateway.errors import GatewayError
from omni_gateway.settings import GatewaySettingsError
from omni_gateway.telemetry import GatewayMetrics
from omni_proto.pod_contract import DOMAIN
from omni_proto.rpc.retry import NOT_READY

log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1.0
"""Pause that a caller is asked for."""
THREADS: Final = 4
MAX_CALLS: Final = 256
"""Further concurrent calls are refused by gRPC, with RESOURCE_EXHAUSTED."""
MAX_AGE_MS: Final = 2_000
"""A connection is closed after this time, so that its caller connects to the Service again, and to the pods."""


def find_sleeper(pipelines: Sequence[ServedPipeline], authority: str) -> ServedPipeline | None:
    """Returns the pipeline that may sleep and that an authority names: NAME, NAME.NAMESPACE, or longer. None if there
    is none, or if NAME alone is the name of several."""
    name, _, rest = authority.rpartition("@")[2].partition(":")[0].rstrip(".").partition(".")
    namespace = rest.partition(".")[0]
    found = [one for one in pipelines if one.name == name and one.scale_target]
    if namespace:
        found = [one for one in found if one.namespace == namespace]
    return found[0] if len(found) == 1 else None


class Activator:
    """The server. Use `run` in the event loop in which the pipelines are watched."""

    def __init__(self, pipelines: Pipelines, address: str) -> None:
        """address: HOST:PORT to listen on."""
        self._pipelines = pipelines
        self._address = address
        self._asked: dict[str, float] = {}
        self._waking: set[asyncio.Task[None]] = set()
        self.port = 0
        """The port that it listens on, while `run` is open."""

    @asynccontextmanager
    async def run(self, metrics: GatewayMetrics) -> AsyncGenerator[None, None]:
        """Serve while the block is open. Raises GatewaySettingsError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix="activator"),
            handlers=[_Everything(lambda authority: asyncio.run_coroutine_threadsafe(self._answer(authority), loop))],
            options=[("grpc.max_connection_age_ms", MAX_AGE_MS), ("grpc.max_receive_message_length", 8 << 20)],
            maximum_concurrent_rpcs=MAX_CALLS,
        )
        try:
            self.port = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise GatewaySettingsError(f"--activator: cannot listen on {self._address}") from error
        server.start()
        try:
            yield
        finally:
            await asyncio.to_thread(server.stop(0).wait)
            for task in self._waking:
                task.cancel()

    async def _answer(self, authority: str) -> str:
        """Wake the pipeline that an authority names. Returns the message for its caller; empty if there is none."""
        pipeline = find_sleeper(self._pipelines.list_pipelines(), authority)
        if pipeline is None:
            return ""
        now = time.monotonic()
        if pipeline.asleep and now - self._asked.get(pipeline.qualified, -WAKE_S) >= WAKE_S:
            self._asked = {name: at for name, at in self._asked.items() if now - at < WAKE_S}
            self._asked[pipeline.qualified] = now
            # In a task: while the API server is slow, callers get their answer nevertheless.
            task = asyncio.create_task(self._wake(pipeline))
            self._waking.add(task)
            task.add_done_callback(self._waking.discard)
        return f"pipeline {pipeline.qualified} slept because nobody used it, and its pods start; call again"

    async def _wake(self, pipeline: ServedPipeline) -> None:
        log.info("waking a pipeline for a gRPC caller", extra={"pipeline": pipeline.qualified})
        try:
            await self._pipelines.wake(pipeline)
        except GatewayError as error:
            log.warning("a pipeline is not woken", extra={"pipeline": pipeline.qualified, "reason": str(error)})


class _Everything(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Answers every method in the same way."""

    def __init__(self, answer: Callable[[str], Future[str]]) -> None:
        self._answer = answer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Returns a handler that refuses the call, and reads no message. None for a health check: clients take a server
        without health checks for healthy, and their calls then get their answer here."""
        if handler_call_details.method.startswith("/grpc.health."):
            return None
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    def _refuse(self, requests: object, context: Any) -> NoReturn:
        # grpcio (1.85, `_server.py`) shows servers no authority, and a Service's cluster IP says nothing: only the
        # call details of the event, which are private, name what was called.
        authority = context._rpc_event.call_details.host.decode("latin-1")
        said = self._answer(authority).result()
        if not said:
            context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"no pipeline that sleeps is called {authority[:256]!r}; call NAME.NAMESPACE.svc",
            )
        status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message=said)
        status.details.add().Pack(error_details_pb2.ErrorInfo(domain=DOMAIN, reason=NOT_READY))
        delay = duration_pb2.Duration(seconds=int(RETRY_AFTER_S))
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        context.abort_with_status(rpc_status.to_status(status))
        raise AssertionError("unreachable")  # both methods raise
