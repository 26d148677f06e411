"""Reads the body of a request, with limits on its size, on the time until it has arrived, and on the number of bodies
that are on their way."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from starlette.types import Receive

from omni_gateway.context import Share
from omni_gateway.errors import ClientDisconnectedError, InvalidRequestError, TooLargeError, UnavailableError
from omni_gateway.guard.refusals import LARGE_BYTES, Refusals
from omni_proto.runtime.limits import PeerTable

STALLED_S: Final = 1.0
"""A body of which nothing has arrived for so long gives way to others."""
_CLOSE: Final = {"connection": "close"}
"""The rest of the body would still come."""


class _Arriving:
    """A body that has not arrived completely."""

    def __init__(self, share: Share, deadline: asyncio.Timeout) -> None:
        self.share = share
        self.deadline = deadline
        self.size = 0
        self.moved = time.monotonic()
        """When its last piece arrived."""
        self.is_dropped = False

    def drop(self) -> None:
        """End it in favour of another one."""
        self.is_dropped = True
        self.share.release()
        self.deadline.reschedule(asyncio.get_running_loop().time())


class BodyReader:
    """Reads bodies. Those that have not arrived have slots of their own, so they do not take those of requests that
    are served."""

    def __init__(self, max_bytes: int, max_seconds: float, slots: int, refusals: Refusals) -> None:
        """slots: maximum number of bodies on their way. If there are more, the holder of the most loses its oldest."""
        self._refusals = refusals
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._slots = slots
        self._arriving: PeerTable[_Arriving] = PeerTable()

    async def read(self, receive: Receive, length: str | None, share: Share, holder: str) -> bytearray:
        """Returns the body. length is the header content-length. share counts the body. holder: the key or the address
        that the body comes from.

        Raises TooLargeError if the body exceeds the limit (before it reads anything, if content-length says so),
        InvalidRequestError if the body takes too long, UnavailableError if memory is short or the body gave way to
        others, and ClientDisconnectedError if the client disconnects.
        """
        said = int(length) if length is not None and length.isdecimal() else 0
        if said > self._max_bytes:
            raise self._too_large()
        body, paid = bytearray(), False
        deadline = asyncio.timeout(self._max_seconds)
        mine = _Arriving(share, deadline)
        try:
            async with deadline:
                self._enter(holder, mine)
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientDisconnectedError
                    piece = message.get("body", b"")
                    if len(body) + len(piece) > self._max_bytes:
                        raise self._too_large()
                    self._count(holder, mine, len(piece))
                    body += piece
                    more = message.get("more_body", False)
                    if more and not paid and len(body) > LARGE_BYTES:
                        # Meanwhile nothing more of this connection is received.
                        share.paid, paid = await self._refusals.pay(holder, max(said, len(body))), True
        except TimeoutError as error:
            if mine.is_dropped:
                why = "The body had not arrived when its place was needed for others; send it faster, or try again."
                raise UnavailableError(why, retry_after_s=1, headers=_CLOSE) from error
            raise InvalidRequestError(
                f"The body did not arrive within {self._max_seconds:g} s.", code="body_timeout", headers=_CLOSE
            ) from error
        finally:
            self._arriving.remove(holder, mine)
        return body

    def _enter(self, holder: str, mine: _Arriving) -> None:
        self._arriving.add(holder, mine)
        if len(self._arriving) > self._slots:
            largest = self._arriving.largest()
            self._drop(largest, self._arriving.oldest_of(largest))

    def _count(self, holder: str, mine: _Arriving, size: int) -> None:
        """Count a piece. If memory is short, bodies that stall, or whose holder has more, give way."""
        now = time.monotonic()
        while True:
            try:
                mine.share.add(size)
            except UnavailableError:
                if mine.is_dropped or (victim := self._find_victim(holder, mine, size)) is None:
                    raise
                self._drop(*victim)
            else:
                break
        mine.size += size
        mine.moved = now

    def _find_victim(self, holder: str, mine: _Arriving, size: int) -> tuple[str, _Arriving] | None:
        """Returns the largest body of the holder with the most bytes: one that stalls, or whose holder has more than
        twice as much as this one would have. None: there is none."""
        stalled_since, held = time.monotonic() - STALLED_S, {holder: size}
        for peer, one in self._arriving:
            held[peer] = held.get(peer, 0) + one.size
        found = [
            (held[peer], one.size, peer, one)
            for peer, one in self._arriving
            if one is not mine and one.size and (one.moved < stalled_since or held[peer] > 2 * held[holder])
        ]
        if not found:
            return None
        *_, peer, one = max(found, key=lambda item: item[:2])
        return peer, one

    def _drop(self, holder: str, victim: _Arriving) -> None:
        self._arriving.remove(holder, victim)
        victim.drop()

    def _too_large(self) -> TooLargeError:
        return TooLargeError(f"The body is larger than {self._max_bytes} bytes, the limit.")
