"""Channels to the downstream stages: lasting ones, and new ones where an old one has lost its stage.

A name that does not resolve, as that of a stage whose only pod is being replaced, is asked for again by gRPC's DNS
resolver after 1 s, and then after pauses that grow by 1.6 up to two minutes (gRPC core 1.85, `polling_resolver.cc`);
no channel option shortens them. A stage that came back after a minute would be missed for another. A new channel has a
new resolver, which asks at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import grpc

from omni_proto.channel import channel_options
from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.service.wire import GENERATE, SERVICE_NAME, serialize_request

RENEW_AFTER_S = 2.0
"""Least age of a channel that is replaced because it cannot reach its stage."""


@dataclass(frozen=True, slots=True)
class _Line:
    channel: grpc.aio.Channel
    generate: Any
    opened: float
    """time.monotonic() in seconds."""


class DownstreamChannels:
    """A channel for each downstream stage."""

    def __init__(
        self, targets: Mapping[str, str], *, grace_s: float = 600.0, renew_after_s: float = RENEW_AFTER_S
    ) -> None:
        """targets: stage -> gRPC target. Calls in flight on a channel that is replaced may go on for grace_s."""
        self._targets = dict(targets)
        self._grace_s = grace_s
        self._renew_after_s = renew_after_s
        self._lines = {stage: self._open(stage) for stage in self._targets}
        self._retiring: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def generate(self, stage: str, *, timeout: float, metadata: tuple[tuple[str, str], ...]) -> Any:
        """Open a Generate call to a downstream stage."""
        line = self._lines[stage]
        # A channel is in this state until it reaches the stage again, also while it tries.
        lost = line.channel.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE
        if lost and time.monotonic() - line.opened >= self._renew_after_s:
            self._retire(line.channel)
            line = self._lines[stage] = self._open(stage)
        return line.generate(timeout=timeout, metadata=metadata)

    async def close(self) -> None:
        """Close every channel; calls in flight end with CANCELLED."""
        for channel in (*self._retiring.values(), *(line.channel for line in self._lines.values())):
            await channel.close()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def _open(self, stage: str) -> _Line:
        channel = grpc.aio.insecure_channel(self._targets[stage], options=channel_options())
        generate = channel.stream_stream(
            f"/{SERVICE_NAME}/{GENERATE}",
            request_serializer=serialize_request,
            response_deserializer=stage_service_pb2.GenerateResponse.FromString,
        )
        return _Line(channel, generate, time.monotonic())

    def _retire(self, channel: grpc.aio.Channel) -> None:
        """Close a channel once its calls have ended: a pod that drains goes on with them."""
        task = asyncio.get_running_loop().create_task(channel.close(self._grace_s))
        self._retiring[task] = channel
        task.add_done_callback(lambda done: self._retiring.pop(done, None))
