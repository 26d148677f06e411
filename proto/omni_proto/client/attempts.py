"""The attempts of one request, without I/O: what each response and each end of a call means. Both clients use them.

A client sends the messages after Start only once it has received Accepted, so no media are sent to a stage that refuses
the request. Retries happen only before Accepted, and a stage sends no output before Accepted. So no output arrives
twice, even if an Accepted was lost in transit. A stage may begin to work before Accepted; if the call ends, that work
ends too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import grpc

from omni_proto.client.errors import ProtocolError, error_from_rpc
from omni_proto.client.events import Accepted, Event, event_from_response
from omni_proto.rpc.retry import NOT_READY, compute_retry_wait_s, is_fault, is_unreached
from omni_proto.stage.v1.stage_service_pb2 import GenerateResponse


class Attempts:
    """The calls that one request makes. For each call use `begin`, then `take` for each response, then `finish` or
    `fail`."""

    def __init__(
        self,
        timeout_s: float | None,
        *,
        target: str = "",
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """timeout_s bounds all attempts together. Errors name the target. clock is in seconds; draw gives the jitter of
        retries, in [0, 1)."""
        self._target = target
        self._stage = ""
        self._clock = clock
        self._draw = draw
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self.number = 0
        """Number of the attempt, from 1."""
        self.accepted = False
        """Whether a stage accepted the request in this attempt."""
        self._wakes = False
        """Whether the request met a pipeline that wakes."""

    def begin(self) -> float | None:
        """Begin an attempt. Returns its timeout in seconds: 0 after the deadline, None without a deadline."""
        self.number += 1
        self.accepted = False
        return self._remaining_s()

    def take(self, response: GenerateResponse | None) -> Event | None:
        """Returns the event of a response, or None if its kind belongs to a newer protocol. Raises ProtocolError."""
        if response is None:  # grpc.aio returns this for bytes that do not parse
            raise ProtocolError("a message is not a GenerateResponse: truncated or damaged")
        event = event_from_response(response)
        if not self.accepted and not isinstance(event, Accepted):
            raise ProtocolError(f"{response.WhichOneof('message') or 'nothing'} came before accepted")
        if not self.accepted:
            self.accepted, self._stage = True, response.stage
        return event

    def finish(self) -> None:
        """Handle the end of a call with OK. Raises ProtocolError if the request was never accepted."""
        if not self.accepted:
            raise ProtocolError("the call ended without accepted")

    def is_unreached(self, error: grpc.RpcError) -> bool:
        """Returns whether the failed call did not reach a stage."""
        return not self.accepted and is_unreached(error)

    def is_fault(self, error: grpc.RpcError) -> bool:
        """Returns whether the failed call says that its pod fails."""
        return is_fault(error, self._stage)

    def fail(self, error: grpc.RpcError, *, closed: bool) -> float:
        """Handle the failure of a call. Returns the seconds to wait before the next attempt.

        Raises OmniRequestError if there is no next attempt, for example because the client is closed.
        """
        failure = error_from_rpc(error, target=self._target, stage=self._stage if self.accepted else "")
        wait_s = None
        self._wakes |= failure.reason == NOT_READY
        if not (self.accepted or closed):
            wait_s = compute_retry_wait_s(
                failure,
                attempt=self.number,
                remaining_s=self._remaining_s(),
                jitter=self._draw(),
                wakes=self._wakes,
            )
        if wait_s is None:
            raise failure from error
        return wait_s

    def _remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())
