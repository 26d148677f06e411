"""Limits of rates and of members by peer, for servers. Pure; the caller passes in the time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Member = TypeVar("Member")

MAX_CHAT_PARTS: Final = 1024
"""Maximum number of parts and tool calls in all messages of a chat together, and therefore of messages. The bound is on
the sum, because the cost of a conversation does not depend on how it is divided into messages."""

USERS: Final = 16
"""All users that one client names together may take this many times what one client may, because nobody verifies the
names."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client, or a user of a client, as a server knows it."""

    address: str = ""
    """Address without port, or the identity of a client certificate; empty in an offline engine."""
    user: str = ""
    """The user that a client with many users, such as the gateway, names in a call; empty if the client names none.
    Nobody verifies it, so users share what their client may use."""


class PeerTable(Generic[Member]):
    """Members by peer. The members of one peer are in the order in which they were added."""

    def __init__(self) -> None:
        self._by_peer: dict[str, dict[Member, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, Member]]:
        """Yields each member with its peer, the members of one peer in their order."""
        return ((peer, member) for peer, members in self._by_peer.items() for member in members)

    def held_by(self, peer: str) -> int:
        """Returns how many members a peer has."""
        return len(self._by_peer.get(peer, ()))

    def add(self, peer: str, member: Member) -> None:
        """Add a member, as the newest of its peer."""
        self._by_peer.setdefault(peer, {})[member] = None
        self._count += 1

    def remove(self, peer: str, member: Member) -> None:
        """Remove a member. Does nothing if the table does not hold it."""
        members = self._by_peer.get(peer, {})
        if member in members:
            del members[member]
            self._count -= 1
            if not members:
                del self._by_peer[peer]

    def members_of(self, peer: str) -> Iterable[Member]:
        """Returns the members of a peer, the oldest first."""
        return self._by_peer.get(peer, {}).keys()

    def oldest_of(self, peer: str) -> Member:
        """Returns the oldest member of a peer, which must have at least one."""
        return next(iter(self._by_peer[peer]))

    def largest(self) -> str:
        """Returns the peer with the most members, the first one if several tie. The table must not be empty."""
        return max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))


@dataclass(slots=True)
class TokenBucket:
    """Refills evenly up to its capacity. The level may fall below zero if an amount is known only after its use.

    Rate and capacity are arguments, because some limits change while they are in use.
    """

    level: float
    filled_at: float
    """Time of the last refill, in seconds of any monotonic clock."""

    def refill(self, per_second: float, capacity: float, now: float) -> None:
        """Add what has accrued since the last refill."""
        self.level = min(capacity, self.level + (now - self.filled_at) * per_second)
        self.filled_at = now

    def take(self, amount: float = 1.0) -> bool:
        """Take the amount if it is there. Returns whether it was."""
        if self.level < amount:
            return False
        self.level -= amount
        return True

    def wait_s(self, amount: float, per_second: float) -> float:
        """Returns the seconds until that amount is available; 0 if it is now."""
        return max(0.0, (amount - self.level) / per_second)


class BucketTable:
    """A token bucket for each client. When there are too many, the one that was used least recently is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._buckets: OrderedDict[Hashable, TokenBucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def refilled(self, client: Hashable, per_second: float, capacity: float, now: float) -> TokenBucket:
        """Returns a client's bucket, refilled until now; that of a new client is full."""
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = TokenBucket(capacity, now)
            if len(self._buckets) > self._most:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(client)
        bucket.refill(per_second, capacity, now)
        return bucket
