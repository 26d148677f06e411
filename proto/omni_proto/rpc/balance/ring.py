"""Consistent hashing: which pod a key belongs to. Pure.

Each pod has POINTS places on a circle of 64-bit hashes, and a key belongs to the next place. When a pod comes or goes,
only the keys of its own places move. All callers that know the same pods agree, without talking to each other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from hashlib import blake2b
from typing import Final

POINTS: Final = 64
"""Places of a pod: with 64, the largest share of the circle is about a third above the mean."""


def hash_key(data: bytes) -> int:
    """Returns a 64-bit hash that is the same in every process."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big")


class Ring:
    """The circle of some pods' places."""

    def __init__(self, addresses: Collection[str]) -> None:
        places = sorted(
            (hash_key(f"{address}#{point}".encode()), address) for address in addresses for point in range(POINTS)
        )
        self._hashes = [place for place, _ in places]
        self._addresses = [address for _, address in places]

    def walk(self, key: int) -> Iterator[str]:
        """Yields each pod once, beginning with the owner of the key, in the order in which they take over from it."""
        seen: set[str] = set()
        addresses = self._addresses
        start = bisect_right(self._hashes, key)
        for place in range(start, start + len(addresses)):
            address = addresses[place % len(addresses)]
            if address not in seen:
                seen.add(address)
                yield address
