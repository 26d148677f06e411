"""Records when the steps of one request happened in one stage, in ns since Accepted."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from omni_proto.stage.v1 import events_pb2


@dataclass(slots=True)
class Timeline:
    """Times of one request in ns since Accepted; 0 means that the event did not happen."""

    accepted_unix_ns: int = field(default_factory=time.time_ns)
    accepted_ns: int = field(default_factory=time.monotonic_ns)
    """Time of Accepted on the monotonic clock, from which the times below count."""
    input_complete: int = 0
    decode_start: int = 0
    """When the media worker starts to decode the prompt's media."""
    decode_end: int = 0
    engine_submitted: int = 0
    engine_scheduled: int = 0
    first_output: int = 0
    last_output: int = 0
    transfer_start: int = 0
    transfer_end: int = 0
    first_audio: int = 0
    finished: int = 0
    steps: list[int] = field(default_factory=list)

    def accept(self) -> None:
        """Record that the request is accepted now."""
        self.accepted_unix_ns, self.accepted_ns = time.time_ns(), time.monotonic_ns()

    def now(self) -> int:
        """Returns the ns since Accepted; at least 1, because 0 means that an event did not happen."""
        return self.since(time.monotonic_ns())

    def since(self, monotonic_ns: int) -> int:
        """Returns the ns from Accepted to a time of the monotonic clock; at least 1."""
        return max(1, monotonic_ns - self.accepted_ns)

    def to_proto(self, *, with_steps: bool) -> events_pb2.StageTimings:
        """Returns the times as the protocol's message."""
        return events_pb2.StageTimings(
            accepted_unix_ns=self.accepted_unix_ns,
            input_complete_ns=self.input_complete,
            engine_submitted_ns=self.engine_submitted,
            engine_scheduled_ns=self.engine_scheduled,
            first_output_ns=self.first_output,
            last_output_ns=self.last_output,
            transfer_start_ns=self.transfer_start,
            transfer_end_ns=self.transfer_end,
            first_audio_ns=self.first_audio,
            finished_ns=self.finished,
            step_ns=self.steps if with_steps else (),
        )
