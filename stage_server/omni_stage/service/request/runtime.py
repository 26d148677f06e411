"""What all calls of a stage server share."""

from __future__ import annotations

from dataclasses import dataclass, field

from omni_proto.stage_config import StageConfig
from omni_stage.engine.protocol import StageEngine
from omni_stage.service.edges.channels import DownstreamChannels
from omni_stage.service.guard.admission import Admission, CallQuota, Planners
from omni_stage.service.load import LoadMeter
from omni_stage.service.media.worker_pool import MediaPool
from omni_stage.service.metering import StageMetrics
from omni_stage.service.request.in_flight import InFlight
from omni_stage.service.request.tracing import StageTracing


@dataclass(slots=True)
class StageRuntime:
    """The engine of a stage server, its limits, and its connections to others."""

    config: StageConfig
    engine: StageEngine
    admission: Admission
    in_flight: InFlight
    channels: DownstreamChannels
    metrics: StageMetrics
    load: LoadMeter
    starting: CallQuota
    """Slots of calls that have not sent Start: no bytes are reserved for them yet."""
    tracing: StageTracing = field(default_factory=StageTracing)
    media: MediaPool = field(default_factory=MediaPool)
    planners: Planners = field(init=False)
    engine_ready: bool = False
    """Whether the engine has loaded and completed its warm-up request."""

    def __post_init__(self) -> None:
        self.planners = Planners(self.starting.in_all)
