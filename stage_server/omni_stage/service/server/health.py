"""grpc.health.v1, which kubelet, load balancers and upstream stages query.

Readiness depends only on this stage (its engine, its drain), never on the health of downstream stages. Otherwise one
stage's fault would take all others out of service. `liveness` reports whether a restart would help.
"""

from __future__ import annotations

from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from omni_proto.pod_contract import LIVENESS, READINESS
from omni_stage.service.wire import SERVICE_NAME

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class StageHealth:
    """Health of the stage: `main` on the port of StageService, `probes` on the health-only port."""

    def __init__(self) -> None:
        self.main = HealthServicer()
        self.probes = HealthServicer()
        self.ready = False
        self.alive = True

    async def publish(self) -> None:
        """Publish the initial state, before any change."""
        await self.set_ready(self.ready)
        await self.set_alive(self.alive)

    async def set_ready(self, ready: bool) -> None:
        """Set whether the stage accepts requests: the status of "", `readiness` and the service's name."""
        self.ready = ready
        status = _SERVING if ready else _NOT_SERVING
        for service in ("", SERVICE_NAME):
            await self.main.set(service, status)
        for service in ("", READINESS):
            await self.probes.set(service, status)

    async def set_alive(self, alive: bool) -> None:
        """Set whether the process can still do its work: the status of `liveness`."""
        self.alive = alive
        await self.probes.set(LIVENESS, _SERVING if alive else _NOT_SERVING)
