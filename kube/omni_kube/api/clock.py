"""The API server's clock. Decisions compare it with timestamps that the API server wrote.

The local clock may be an hour ahead; compared with that clock, live pods would count as lost too early. This module
does no I/O: callers pass in the local monotonic time.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


class ServerClock:
    """A clock set by the Date header of responses.

    From the first response on, it is never ahead of the server, and is behind it by at most a second and the latency of
    a response.
    """

    def __init__(self) -> None:
        self._header = ""
        self._date: datetime | None = None
        self._heard = 0.0

    def hear(self, header: str, monotonic: float) -> None:
        """Set the clock by the Date header of a response ("" if it has none). A malformed date is ignored."""
        # A date has no fractions of a second. So the first response with a date is the most precise one.
        if not header or header == self._header:
            return
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return
        self._header, self._heard = header, monotonic
        self._date = date if date.tzinfo else date.replace(tzinfo=UTC)

    def now(self, monotonic: float) -> datetime:
        """Returns the server's time; the local time until the first response."""
        if self._date is None:
            return datetime.now(UTC)
        return self._date + timedelta(seconds=monotonic - self._heard)
