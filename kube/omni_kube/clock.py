"""What time it is by the API server's clock, which writes the times that decisions compare with.

Our own may be an hour ahead: live pods would then count as lost long before their time. Sans-IO: our side is a
monotonic clock, passed in.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime


class ServerClock:
    """Set by the Date header of answers; never ahead of the server, and behind it by a second and an answer's way."""

    def __init__(self) -> None:
        self._header = ""
        self._date: datetime | None = None
        self._heard = 0.0

    def hear(self, header: str, monotonic: float) -> None:
        """An answer came with that Date header ("" for none). One that is no date is passed over."""
        # Of answers with one date the first is nearest to it.
        if not header or header == self._header:
            return
        try:
            date = parsedate_to_datetime(header)
        except ValueError:
            return
        self._header, self._heard = header, monotonic
        self._date = date if date.tzinfo else date.replace(tzinfo=UTC)

    def now(self, monotonic: float) -> datetime:
        """Returns the time; our own clock's until the server has answered."""
        if self._date is None:
            return datetime.now(UTC)
        return self._date + timedelta(seconds=monotonic - self._heard)
