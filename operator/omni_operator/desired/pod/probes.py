"""gRPC probes of a stage container, on the health-only port.

startup      `readiness`: the engine is loaded and warm. Until then the other probes do not run. A failed load ends
             the process by itself; the limit is for a load that hangs, so it is generous.
readiness    `readiness`: whether the stage accepts requests (its engine works and it does not drain). It does not
             depend on the health of downstream stages.
liveness     `liveness`: whether a restart is needed, because the watchdog has detected that the engine hangs.
"""

from __future__ import annotations

from typing import Final

from omni_kube.objects import Manifest
from omni_proto.pod_contract import HEALTH_PORT, LIVENESS, READINESS

STARTUP_S: Final = 600
"""Startup time on the CPU: imports (tens of seconds where cores are shared), a small model, one warm-up request."""
STARTUP_PER_GPU_S: Final = 1200
"""More time for each GPU: about 80 GB of weights from a network volume at 100 MB/s, compilation, graph capture."""
STARTUP_MOST_S: Final = 3600
_STARTUP_PERIOD_S: Final = 2
_HUNG_GRACE_S: Final = 30
"""Grace period of a process that hangs. It cannot drain, so it need not be given the pod's longer grace period."""


def startup_seconds(gpus: int) -> int:
    """Returns the longest time in seconds that a stage with that many GPUs may take to become ready."""
    return min(STARTUP_S + STARTUP_PER_GPU_S * gpus, STARTUP_MOST_S)


def build_probes(gpus: int) -> Manifest:
    """Returns the startupProbe, readinessProbe and livenessProbe of a container with that many GPUs."""
    return {
        "startupProbe": {
            "grpc": {"port": HEALTH_PORT, "service": READINESS},
            "periodSeconds": _STARTUP_PERIOD_S,
            "timeoutSeconds": 3,
            "failureThreshold": startup_seconds(gpus) // _STARTUP_PERIOD_S,
            "terminationGracePeriodSeconds": _HUNG_GRACE_S,
        },
        "readinessProbe": {
            "grpc": {"port": HEALTH_PORT, "service": READINESS},
            "periodSeconds": 5,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            "grpc": {"port": HEALTH_PORT, "service": LIVENESS},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
            "terminationGracePeriodSeconds": _HUNG_GRACE_S,
        },
    }
