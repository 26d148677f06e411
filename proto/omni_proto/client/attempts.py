"""The attempts of one request, without I/O: what each response means, and each end of a call. Both clients use it.

A stage works only after End, and a client sends what follows Start once it saw Accepted. So a retry, which happens only
before Accepted, never makes a request run twice, even if an Accepted was lost on its way; and no media are sent to a
stage that refuses the request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import grpc

from omni_proto.client.errors import ProtocolError, error_from_rpc
from omni_proto.client.events import Accepted, Event, event_from_response
from omni_proto.client.timing import remaining_s
from omni_proto.rpc.retry import compute_retry_wait_s, is_unreached
from omni_proto.stage.v1.stage_service_pb2 import GenerateResponse


class Attempts:
    """The calls that one request makes. For each: begin, then take for each response, then finish or fail."""

    def __init__(
        self,
        timeout_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """timeout_s bounds all attempts together. clock is in seconds; draw spreads callers, in [0, 1)."""
        self._clock = clock
        self._draw = draw
        self._deadline = None if timeout_s is None else clock() + timeout_s
        self.number = 0
        """Of the attempt, from 1."""
        self.accepted = False
        """Whether a stage took the request in this attempt."""

    def begin(self) -> float | None:
        """An attempt begins. Returns its timeout in seconds, 0 when the deadline passed; None without one."""
        self.number += 1
        self.accepted = False
        return self._remaining_s()

    def take(self, response: GenerateResponse | None) -> Event | None:
        """Returns the event of a response; None for one of a newer protocol. Raises ProtocolError."""
        if response is None:  # what grpc.aio makes of bytes that do not parse
            raise ProtocolError("a message is not a GenerateResponse: truncated or damaged")
        event = event_from_response(response)
        if not self.accepted and not isinstance(event, Accepted):
            raise ProtocolError(f"{response.WhichOneof('message') or 'nothing'} came before accepted")
        self.accepted = True
        return event

    def finish(self) -> None:
        """The call ended with OK. Raises ProtocolError if nothing was accepted."""
        if not self.accepted:
            raise ProtocolError("the call ended without accepted")

    def is_unreached(self, error: grpc.RpcError) -> bool:
        """Whether the call that failed did not reach a stage."""
        return not self.accepted and is_unreached(error)

    def fail(self, error: grpc.RpcError, *, closed: bool) -> float:
        """The call failed. Returns the seconds to wait before the next attempt.

        Raises OmniRequestError if there is none, as when the client is closed.
        """
        failure = error_from_rpc(error)
        wait_s = None
        if not (self.accepted or closed):
            wait_s = compute_retry_wait_s(
                failure, attempt=self.number, remaining_s=self._remaining_s(), jitter=self._draw()
            )
        if wait_s is None:
            raise failure from error
        return wait_s

    def _remaining_s(self) -> float | None:
        return remaining_s(self._deadline, self._clock())
