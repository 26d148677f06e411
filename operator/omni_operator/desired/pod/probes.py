"""gRPC probes of a stage container, on the health-only port.

startup      `readiness`: the engine is loaded and warm. Until then neither other probe runs. A load that fails ends the
             process by itself; this limit is for one that hangs, so it is generous.
readiness    `readiness`: whether the stage takes requests (its engine, its drain; never a downstream's health).
liveness     `liveness`: whether a restart would help (the watchdog has seen the engine hang).
"""

from __future__ import annotations

from typing import Final

from omni_kube.objects import Manifest
from omni_proto.pod_contract import HEALTH_PORT, LIVENESS, READINESS

STARTUP_S: Final = 600
"""For a stage on the CPU: imports (tens of seconds where cores are shared), a small model, one warm-up request."""
STARTUP_PER_GPU_S: Final = 1200
"""More for each GPU: about 80 GB of weights from a network volume at 100 MB/s, compilation, graph capture."""
STARTUP_MOST_S: Final = 3600
_STARTUP_PERIOD_S: Final = 2
_HUNG_GRACE_S: Final = 30
"""A hung process cannot drain: it does not get the pod's whole grace period, in which nobody would serve."""


def startup_seconds(gpus: int) -> int:
    """Longest time that a stage on so many GPUs may take to become ready."""
    return min(STARTUP_S + STARTUP_PER_GPU_S * gpus, STARTUP_MOST_S)


def build_probes(gpus: int) -> Manifest:
    """startupProbe, readinessProbe and livenessProbe of a container with so many GPUs."""
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
