"""Keeps the last places in the engine's steps free for clients with few requests. No clock.

Requests that run are not interrupted, so a client whose long answers fill all places would make every other client wait
for the first of them to end. service/guard/admission.py applies the same shares to a stage's requests and bytes.
"""

from __future__ import annotations

import math
from typing import Final

LARGE_SHARE: Final = 0.5
"""A client that holds this share of a limit, or more, leaves FOR_OTHERS of it free."""
FOR_OTHERS: Final = 0.125
"""Share of a limit that is for clients that hold less, while there are any."""
OTHERS_S: Final = 60.0
"""Seconds after its last call for which a client counts."""
LATE_S: Final = 1.0
"""Seconds by which a request is later in the engine's queue, for each request that its client holds."""


class LastPlaces:
    """Decides which waiting requests may run. Used from one thread.

    A request says by how many seconds it is late, LATE_S for each request that its client held when it came.
    """

    def __init__(self, places: int) -> None:
        """places: how many requests may run."""
        self._places = places
        self._many: dict[str, float] = {}
        """The late requests in the engine, with their seconds."""
        self._others_at = -math.inf

    def add(self, request_id: str, late_s: float, now: float) -> None:
        """Note a new request. One that is not late is of a client that holds no other, so while there are late ones,
        there is another client."""
        if late_s > 0:
            self._many[request_id] = late_s
        elif self._many:
            self._others_at = now

    def remove(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._many.pop(request_id, None)

    def admits(self, request_id: str, running: int, now: float) -> bool:
        """Returns whether a waiting request may run beside `running` others."""
        held = self._many.get(request_id, 0.0) / LATE_S
        if held < LARGE_SHARE * self._places or now - self._others_at > OTHERS_S:
            return True
        return running < self._places - int(FOR_OTHERS * self._places)
