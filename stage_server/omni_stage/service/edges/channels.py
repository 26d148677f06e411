"""Opens calls to the downstream stages, on pooled channels, within the time that a request has left."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

import grpc

from omni_proto.rpc.balance.addresses import resolver_of
from omni_proto.rpc.balance.choice import Fault, Reason
from omni_proto.rpc.balance.pool import StageChannels
from omni_proto.rpc.balance.report import find_report
from omni_proto.rpc.balance.watch import AioShell
from omni_proto.rpc.channels import RENEW_AFTER_S, Loan, open_aio_channel, pod_options
from omni_proto.rpc.retry import is_fault, is_unreached
from omni_proto.stage.v1 import stage_service_pb2
from omni_stage.errors import DeadlineExceededError
from omni_stage.service.wire import GENERATE, GET_STAGE, SERVICE_NAME, serialize_request

MIN_HOP_MARGIN_S = 0.05
HOP_MARGIN_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time at which a request must have ended, in seconds of the monotonic clock."""

    at: float

    @classmethod
    def of_call(cls, remaining_s: float | None, longest_s: float, now: float) -> Deadline:
        """Returns the caller's deadline, but at most timeouts.request (longest_s) from now.

        A drain waits for timeouts.request, so no request may take longer.
        """
        return cls(now + (longest_s if remaining_s is None else min(remaining_s, longest_s)))

    def remaining(self, now: float) -> float:
        """Returns the seconds that are left; negative after the deadline."""
        return self.at - now


def downstream_timeout(remaining_s: float, downstream: str) -> float:
    """Returns the next stage's timeout in seconds: the remaining time minus 50 ms or 2 %, whichever is more.

    The margin lets the next stage's error arrive in time. Raises DeadlineExceededError if nothing would be left.
    """
    timeout = remaining_s - max(MIN_HOP_MARGIN_S, HOP_MARGIN_SHARE * remaining_s)
    if timeout <= 0:
        raise DeadlineExceededError(
            f"the deadline leaves no time to call stage {downstream!r}; retry with a later deadline"
        )
    return timeout


TRUST_AFTER_S: Final = 5.0
"""Number of seconds after a refusal in which a stage is likely to refuse the next request too."""


@dataclass(frozen=True, slots=True)
class _StageChannel:
    channel: grpc.aio.Channel
    generate: Any
    get_stage: Any


class OpenCall:
    """A Generate call to a downstream stage. The owner must call `end`."""

    def __init__(self, channels: DownstreamChannels, stage: str, loan: Loan[_StageChannel], call: Any) -> None:
        self.call = call
        """The gRPC call object, to write to and to iterate."""
        self._channels = channels
        self._stage = stage
        self._loan = loan
        self._pool = channels.pools[stage]

    @property
    def pod(self) -> str:
        """Address of the called pod; empty if gRPC chose it."""
        return self._loan.pod

    async def note_accepted(self) -> None:
        """Record the load that the pod reported with Accepted."""
        self._pool.note_report(self._loan, find_report(await self.call.initial_metadata()))

    def note_message(self) -> None:
        """Count a message of the answer."""
        self._pool.note_message(self._loan)

    async def note_complete(self) -> None:
        """Record that the call ended with OK, and the load that the pod reported then."""
        self._loan.report = find_report(await self.call.trailing_metadata())
        self._loan.complete = True

    def note_failed(self, error: grpc.aio.AioRpcError, *, accepted: bool) -> None:
        """Record how the call failed, before or after Accepted."""
        self._loan.unreached = not accepted and is_unreached(error)
        self._loan.is_fault = is_fault(error, self._stage)
        self._loan.report = find_report(error.trailing_metadata())

    def end(self) -> None:
        """Cancel the call unless it has ended. Idempotent."""
        self.call.cancel()
        self._channels.give_back(self._stage, self._loan)


class DownstreamChannels:
    """A pool of channels for each downstream stage. Belongs to one event loop."""

    def __init__(
        self,
        targets: Mapping[str, str],
        *,
        credentials: Mapping[str, grpc.ChannelCredentials] | None = None,
        renew_after_s: float = RENEW_AFTER_S,
        on_choice: Callable[[str, Reason], None] = lambda stage, reason: None,
        on_ejection: Callable[[str, Fault], None] = lambda stage, fault: None,
    ) -> None:
        """targets: stage -> gRPC target. credentials: stage -> TLS; a stage without is called in plaintext. on_choice
        and on_ejection count the choices and ejections of a stage's pods."""
        trust = credentials or {}
        self.pools = {
            stage: StageChannels(
                partial(_open, target, trust.get(stage)),
                AioShell(_raw),
                resolver_of(target),
                renew_after_s=renew_after_s,
                on_choice=partial(on_choice, stage),
                on_ejection=partial(on_ejection, stage),
            )
            for stage, target in targets.items()
        }
        self._closing: set[asyncio.Task[None]] = set()
        self.open_calls = 0
        """Calls that have not ended, to all stages."""
        self._refused_at: dict[str, float] = {}

    def generate(
        self, stage: str, *, timeout: float, metadata: tuple[tuple[str, str], ...], avoid: Collection[str] = ()
    ) -> OpenCall:
        """Open a Generate call to a downstream stage, with `timeout` in seconds. The caller must end it.

        avoid: pods where this request has failed.
        """
        loan = self.pools[stage].take(avoid=avoid)
        self.open_calls += 1
        return OpenCall(self, stage, loan, loan.channel.generate(timeout=timeout, metadata=metadata))

    async def describe(self, stage: str, *, within_s: float) -> stage_service_pb2.GetStageResponse:
        """Returns a downstream stage's answer to GetStage, within `within_s` seconds. Raises grpc.aio.AioRpcError."""
        loan = self.pools[stage].take()
        self.open_calls += 1
        try:
            answer = await loan.channel.get_stage(stage_service_pb2.GetStageRequest(), timeout=within_s)
        except grpc.aio.AioRpcError as error:
            loan.unreached = error.code() is grpc.StatusCode.UNAVAILABLE
            raise
        finally:
            self.give_back(stage, loan)
        return cast(stage_service_pb2.GetStageResponse, answer)

    def note_refused(self, stage: str) -> None:
        """Record that the stage did not accept a request."""
        self._refused_at[stage] = time.monotonic()

    def is_trusted(self, stage: str) -> bool:
        """Returns whether the stage will probably accept a request: it refused none for TRUST_AFTER_S seconds."""
        return time.monotonic() - self._refused_at.get(stage, -math.inf) > TRUST_AFTER_S

    def give_back(self, stage: str, loan: Loan[_StageChannel]) -> None:
        """Give a channel back to its pool once its call has ended; close the channel if it is no longer needed."""
        if not loan.over:
            self.open_calls -= 1
        unused = self.pools[stage].give_back(loan)
        if unused is not None:
            task = asyncio.get_running_loop().create_task(unused.channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close every channel. Calls in flight end with CANCELLED."""
        for pool in self.pools.values():
            for unused in pool.close():
                await unused.channel.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


def _raw(channel: _StageChannel) -> grpc.aio.Channel:
    return channel.channel


def _open(target: str, credentials: grpc.ChannelCredentials | None, pod: str | None) -> _StageChannel:
    options = None if pod is None else pod_options(target, None)
    channel = open_aio_channel(pod or target, credentials=credentials, options=options)
    generate = channel.stream_stream(
        f"/{SERVICE_NAME}/{GENERATE}",
        request_serializer=serialize_request,
        response_deserializer=stage_service_pb2.GenerateResponse.FromString,
    )
    get_stage = channel.unary_unary(
        f"/{SERVICE_NAME}/{GET_STAGE}",
        request_serializer=stage_service_pb2.GetStageRequest.SerializeToString,
        response_deserializer=stage_service_pb2.GetStageResponse.FromString,
    )
    return _StageChannel(channel, generate, get_stage)
