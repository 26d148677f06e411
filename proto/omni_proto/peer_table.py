"""What peers hold of something that is bounded, by peer and in the order in which it came. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

Member = TypeVar("Member")


class PeerTable(Generic[Member]):
    """Members of peers; those of one peer in order."""

    def __init__(self) -> None:
        self._by_peer: dict[str, dict[Member, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def held_by(self, peer: str) -> int:
        """How many members a peer has."""
        return len(self._by_peer.get(peer, ()))

    def add(self, peer: str, member: Member) -> None:
        """Enter a member, as the newest of its peer."""
        self._by_peer.setdefault(peer, {})[member] = None
        self._count += 1

    def remove(self, peer: str, member: Member) -> None:
        """Forget a member. One that is not in the table is no error."""
        members = self._by_peer.get(peer, {})
        if member in members:
            del members[member]
            self._count -= 1
            if not members:
                del self._by_peer[peer]

    def oldest_of(self, peer: str) -> Member:
        """The oldest member of a peer that has one."""
        return next(iter(self._by_peer[peer]))

    def largest(self) -> str:
        """The peer with most members, of several the one that came first; the table must not be empty."""
        return max(self._by_peer, key=lambda peer: len(self._by_peer[peer]))
