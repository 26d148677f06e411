"""grpc.health.v1, which kubelet, load balancers and upstream stages query.

Readiness depends only on this stage (its engine, its drain), never on the health of downstream stages. Otherwise one
stage's fault would take all others out of service. `liveness` reports whether a restart would help.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from omni_proto.pod_contract import LIVENESS, READINESS
from omni_stage.service.load import LoadMeter
from omni_stage.service.wire import SERVICE_NAME

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The statuses of one port's services.

    grpcio-health-checking 1.85 writes to a watching client while it holds the lock that every change of a status needs.
    A watching client that does not read thereby blocks all others, and the stage's own drain. In this class, a change
    never waits: `set` replaces an event, and each `Watch` reads the newest status after it has sent the previous one.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.load: LoadMeter | None = None
        """If set, the answer of Check carries its report as a trailer."""

    def set(self, service: str, status: int) -> None:
        """Set the service's status and wake every watcher."""
        self._statuses[service] = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Returns the service's status. Ends the call with NOT_FOUND if no status was ever set."""
        if request.service not in self._statuses:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        if self.load is not None:
            context.set_trailing_metadata(self.load.report().to_trailer())
        return health_pb2.HealthCheckResponse(status=self._statuses[request.service])

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext) -> None:
        """Send the service's status now and after changes. A client that reads slowly may miss short-lived statuses."""
        sent: int | None = None
        while True:
            changed = self._changed  # before the status is read, so that no change is missed
            status = self._statuses.get(request.service, _UNKNOWN)
            if status != sent:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                sent = status
            await changed.wait()


class StageHealth:
    """Health of the stage: `main` on the port of StageService, `probes` on the health-only port."""

    def __init__(self) -> None:
        self.main = HealthServicer()
        self.probes = HealthServicer()
        self.ready = False
        self.alive = True
        self.set_ready(self.ready)
        self.set_alive(self.alive)

    def set_ready(self, ready: bool) -> None:
        """Set whether the stage accepts requests. This is the status of "", `readiness` and StageService's name."""
        self.ready = ready
        status = _SERVING if ready else _NOT_SERVING
        for service in ("", SERVICE_NAME):
            self.main.set(service, status)
        for service in ("", READINESS):
            self.probes.set(service, status)

    def set_alive(self, alive: bool) -> None:
        """Set whether the process can still do its work. This is the status of `liveness`."""
        self.alive = alive
        self.probes.set(LIVENESS, _SERVING if alive else _NOT_SERVING)
